"""SCRAM, PLAIN and JAAS lines: the vectors of the RFC, both sides of a login, and what is refused."""

import base64
from collections.abc import Callable

import pytest
from barnabas.cluster.broker_login import BrokerLogin
from barnabas.cluster.security import scram
from barnabas.cluster.security.mechanism import AuthenticationError
from barnabas.cluster.security.plain import PlainClient, PlainServer
from barnabas.cluster.security.scram import ScramClient, ScramCredential, ScramServer
from barnabas.config import jaas
from barnabas.protocol import frames
from barnabas.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
KEPT = (  # by Kafka 3.9.1, in /config/users/alice
    "salt=cGVwcGVy,stored_key=NqwlrNUNF9CSyhqdude8Y8SNuVlTYJwptl0XIeLf4GA=,"
    "server_key=wrar6V4opuWI+w/JVmQuHZMrMGwcmFlPqS4UqX4mheA=,iterations=8192"
)


def credential(mechanism: str, password: str, salt: bytes = SALT, iterations: int = 4096) -> ScramCredential:
    salted = scram.salted(mechanism, password, salt, iterations)
    return ScramCredential.of_salted(mechanism, salted, salt, iterations)


def server_of(users: dict[str, ScramCredential], mechanism: str = "SCRAM-SHA-256") -> ScramServer:
    return ScramServer(mechanism, lambda user, _: users.get(user), b"secret", b"n" * 20)


def test_the_example_of_rfc_7677() -> None:
    server = server_of({"user": credential("SCRAM-SHA-256", "pencil")})
    server._nonce = SERVER_NONCE
    first = server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0," + proof
    assert server.step(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.user == "user"


def test_credentials_are_kept_as_kafka_keeps_them() -> None:
    assert ScramCredential.decode(KEPT).encode() == KEPT
    with pytest.raises(ValueError, match="server_key"):
        ScramCredential.decode("salt=cGVwcGVy,stored_key=NqwlrNUNF9CSyhqdude8Y8SNuVlTYJwptl0XIeLf4GA=")
    with pytest.raises(ValueError, match="many"):
        ScramCredential.decode(KEPT.replace("8192", "many"))


def log_in(client: ScramClient, server: ScramServer) -> None:
    token: bytes | None = client.first()
    while token is not None:
        token = client.step(server.step(token))


@pytest.mark.parametrize("mechanism", list(scram.HASHES))
@pytest.mark.parametrize("user", ["alice", "a,b=c", "ünïcode"])
def test_both_sides_agree(mechanism: str, user: str) -> None:
    server = server_of({user: credential(mechanism, "pass,word=")}, mechanism)
    client = ScramClient(mechanism, user, "pass,word=", b"c" * 20)
    log_in(client, server)
    assert server.user == user


@pytest.mark.parametrize("mechanism", list(scram.HASHES))
def test_each_user_has_a_number_of_iterations(mechanism: str) -> None:
    server = server_of({"alice": credential(mechanism, "secret", iterations=8192)}, mechanism)
    client = ScramClient(mechanism, "alice", "secret", b"c" * 20)
    log_in(client, server)
    assert server.user == "alice"


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret"), ("alice", "")])
@pytest.mark.parametrize("mechanism", list(scram.HASHES))
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(user: str, password: str, mechanism: str) -> None:
    server = server_of({"alice": credential(mechanism, "secret")}, mechanism)
    client = ScramClient(mechanism, user, password, b"c" * 20)
    with pytest.raises(AuthenticationError, match=f"invalid credentials with SASL mechanism {mechanism}"):
        log_in(client, server)
    assert server.user is None
    assert not server.is_complete


def test_who_is_not_there_has_always_the_same_salt() -> None:
    firsts = {server_of({}).step(b"n,,n=nobody,r=x").partition(b",s=")[2] for _ in range(3)}
    assert len(firsts) == 1
    assert firsts != {server_of({}).step(b"n,,n=other,r=x").partition(b",s=")[2]}


def test_who_is_not_there_has_another_salt_for_each_mechanism() -> None:
    """As those have who are there: nobody can tell the one from the other."""
    salts = {server_of({}, mechanism).step(b"n,,n=nobody,r=x").split(b",s=")[1] for mechanism in scram.HASHES}
    assert len(salts) == len(scram.HASHES)


@pytest.mark.parametrize("token", [b"n,,n=%s,r=x", b"n,,n=alice,r=%s", b"n,,n=alice,r=x,x=%s"])
def test_a_huge_first_message_is_not_kept(token: bytes) -> None:
    users = {"alice": credential("SCRAM-SHA-256", "x")}
    assert server_of(users).step(token % (b"a" * 1024))
    server = server_of(users)
    with pytest.raises(AuthenticationError, match="Invalid SCRAM client first message"):
        server.step(token % (b"a" * scram.FIRST_BYTES_MAX))
    assert server._first == b""


@pytest.mark.parametrize(
    "token", [b"", b"n", b"n,,", b"n,,n=a", b"n,,r=x", b"p=tls-unique,,n=a,r=x", b"\xff\xfe", b"n,a=other,n=alice,r=x"]
)
def test_a_first_message_that_makes_no_sense_is_refused(token: bytes) -> None:
    with pytest.raises(AuthenticationError):
        server_of({"alice": credential("SCRAM-SHA-256", "x")}).step(token)


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"r=c", b"r=d"),
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final[:-4] + b"AAA=",
        lambda final: final[: final.index(b",p=")],
        lambda final: final + b"!",
        lambda final: b"",
    ],
)
def test_a_last_message_that_was_changed_is_refused(change: Callable[[bytes], bytes]) -> None:
    server = server_of({"alice": credential("SCRAM-SHA-256", "secret")})
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", b"c" * 20)
    client._nonce = "c" + client._nonce
    client._first = b"n=alice,r=" + client._nonce.encode()
    final = client.step(server.step(client.first()))
    assert final is not None
    with pytest.raises(AuthenticationError):
        server.step(change(final))
    assert server.user is None


def test_a_client_finds_out_that_it_is_not_the_broker() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", b"c" * 20)
    client.step(server_of({"alice": credential("SCRAM-SHA-256", "secret")}).step(client.first()))
    with pytest.raises(AuthenticationError, match="does not know"):
        client.step(b"v=AAAA")
    for first in (b"r=other,s=AAAA,i=4096", b"s=AAAA,i=4096", b"r=c,s=AAAA,i=999999999"):
        with pytest.raises(AuthenticationError):
            ScramClient("SCRAM-SHA-256", "alice", "secret", b"c" * 20).step(first)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0alice-secret", "Invalid username or password"),
        (b"\0alice\0", "password not specified"),
        (b"\0\0x", "username not specified"),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0a\0b\0c", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\xff\0a\0b", "Invalid username or password"),
        (b"bob\0alice\0alice-secret", "authorization id that is different"),
    ],
)
def test_what_plain_refuses(token: bytes, why: str) -> None:
    server = PlainServer({"alice": "alice-secret"})
    with pytest.raises(AuthenticationError, match=why) as caught:
        server.step(token)
    assert "alice-secret" not in str(caught.value)
    assert server.user is None


@pytest.mark.parametrize("token", [b"\0alice\0s3cret", b"alice\0alice\0s3cret"])
def test_what_plain_accepts(token: bytes) -> None:
    server = PlainServer({"alice": "s3cret"})
    assert server.step(token) == b""
    assert server.user == "alice"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('M required username="a" password="b";', {"username": "a", "password": "b"}),
        ("M required username=a password=b ;", {"username": "a", "password": "b"}),
        ('M REQUIRED\n  user_x="p;q=\\"r\\\\"\n;', {"user_x": 'p;q="r\\'}),
        ("M required user_x='single \"';", {"user_x": 'single "'}),
        ("M required;", {}),
    ],
)
def test_jaas_lines(text: str, options: dict[str, str]) -> None:
    line = jaas.read(text)
    assert (line.module, line.options) == ("M", options)
    assert "password" not in repr(line)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M",
        "M required",
        'M required username="a"',
        "M perhaps a=b;",
        "M required a;",
        'M required a="b;',
        "M required a=b;;",
    ],
)
def test_a_jaas_line_that_cannot_be_read_is_not_shown(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        jaas.read(text.replace("a", "planted"))
    assert "planted" not in str(caught.value)


def answer(message: SaslHandshakeResponse | SaslAuthenticateResponse, version: int) -> bytearray:
    return bytearray(b"".join(frames.encode_response(message.API_KEY, version, 1, message))[4:])


def test_a_broker_logs_in_to_another() -> None:
    server = server_of({"broker": credential("SCRAM-SHA-512", "secret")}, "SCRAM-SHA-512")
    login = BrokerLogin(ScramClient("SCRAM-SHA-512", "broker", "secret", b"c" * 20), "broker-1")
    sent: bytes | None = login.first_frame()
    assert sent is not None
    sent = login.step(answer(SaslHandshakeResponse(mechanisms=["SCRAM-SHA-512"]), 1))
    while sent is not None:
        _, request = frames.decode_request(memoryview(sent)[4:])
        token = server.step(bytes(request.auth_bytes))
        sent = login.step(answer(SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=7), 2))
    assert server.user == "broker"
    assert login.session_lifetime_ms == 7


def test_a_login_of_a_broker_that_is_refused_says_why() -> None:
    login = BrokerLogin(PlainClient("broker", "planted"), "broker-1")
    login.first_frame()
    with pytest.raises(AuthenticationError, match="SCRAM-SHA-256, and not PLAIN"):
        login.step(answer(SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-256"]), 1))
    login = BrokerLogin(PlainClient("broker", "planted"), "broker-1")
    login.first_frame()
    login.step(answer(SaslHandshakeResponse(mechanisms=["PLAIN"]), 1))
    with pytest.raises(AuthenticationError, match="Invalid username"):
        login.step(answer(SaslAuthenticateResponse(error_code=58, error_message="Invalid username or password"), 2))
