"""OAUTHBEARER: tokens as Kafka 4.3.1 takes and refuses them, both sides of a login, and keys that come and go."""

from typing import Any

import jwt
import pytest
from barnabas.cluster.security import own_tokens, signed_tokens, unsecured_tokens
from barnabas.cluster.security.mechanism import AuthenticationError, LoginError
from barnabas.cluster.security.oauth import OAuthClient, OAuthServer, Token, TokenError
from barnabas.cluster.security.signing_keys import SigningKeys
from barnabas.config.oauth import KEYS_URL, TokenRules, UnsecuredRules, problems_of_validation
from barnabas.runtime.web import WebError
from cryptography.hazmat.primitives.asymmetric import ec
from simulator.env import SimEnv, sim_env
from tokens import Issuer

NOW_S = 1_700_000_000
ISSUER, FOREIGN = Issuer(), Issuer()
KEYS = signed_tokens.read_keys(ISSUER.keys())
PLAIN_RULES = TokenRules.of({KEYS_URL: "file:///keys"}.get)
STRICT = PLAIN_RULES._replace(audience=frozenset({"kafka", "other"}), issuer=ISSUER.name)


def signed(**claims: Any) -> str:
    return ISSUER.token(**({"now_s": NOW_S} | claims))


def checked(token: str, rules: TokenRules = PLAIN_RULES, now_s: float = NOW_S) -> Token:
    return signed_tokens.check(token, KEYS, rules, int(now_s * 1000))


# Each of these was asked of Kafka 4.3.1.
@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"key_id": None},
        {"key": ISSUER.curve_key, "algorithm": "ES256", "key_id": "one-ec"},
        {"iat": NOW_S - 100, "exp": NOW_S - 10},  # the clocks differ
        {"iat": NOW_S + 1000},
        {"exp": NOW_S},
        {"scope": ["a", "b"]},
        {"scope": 3},
        {"user": " alice "},
        {"algorithm": "RS384"},
        {"algorithm": "PS256"},
        {"iss": None},
    ],
)
def test_tokens_that_count(claims: dict[str, Any]) -> None:
    assert checked(signed(**claims)).user == "alice"


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "kafka"}, "aud"),
        ({"key": FOREIGN.key}, "signature"),
        ({"key": FOREIGN.key, "key_id": None}, "signature"),
        ({"key_id": "two"}, "kid"),
        ({"iat": NOW_S - 100, "exp": NOW_S - 60}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"nbf": NOW_S + 1000}, "nbf"),
        ({"iat": NOW_S + 20, "exp": NOW_S + 10}, "ends before"),
        ({"scope": ["a", "a"]}, "twice"),
        ({"scope": ""}, "empty"),
        ({"scope": ["a", " "]}, "empty"),
        ({"user": "  "}, "sub"),
        ({"user": None}, "sub"),
        ({"exp": True}, "number"),
    ],
)
def test_tokens_that_do_not_count(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(TokenError, match=why) as refused:
        checked(signed(**claims))
    assert refused.value.told == '{"status":"invalid_token"}'


def test_a_token_that_names_no_key_is_tried_with_the_first_ones_only() -> None:
    """Kafka tries one, and refuses tokens of the others; a stranger's token must not cost very many signatures."""
    curve_keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(signed_tokens.TRIED_MAX + 1)]
    keys = [signed_tokens.Key(None, "EC", each.public_key()) for each in curve_keys]
    made = [ISSUER.token(now_s=NOW_S, key=each, algorithm="ES256", key_id=None) for each in curve_keys]
    for each in (made[0], made[-2]):
        assert signed_tokens.check(each, keys, PLAIN_RULES, NOW_S * 1000).user == "alice"
    with pytest.raises(TokenError, match="signature"):
        signed_tokens.check(made[-1], keys, PLAIN_RULES, NOW_S * 1000)


def test_nobody_signs_with_nothing_or_with_the_public_key() -> None:
    claims = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 100}
    with pytest.raises(TokenError, match="alg"):
        checked(jwt.encode(claims, None, algorithm="none"))
    known = signed_tokens.read_keys(ISSUER.keys())[0]
    as_password = known.key.public_numbers().n.to_bytes(256, "big")
    with pytest.raises(TokenError):
        checked(jwt.encode(claims, as_password, algorithm="HS256", headers={"kid": "one"}))


@pytest.mark.parametrize("token", ["", ".", "a.b.c", "..", "x" * 1000, signed()[:-5], signed().replace(".", "", 1)])
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(TokenError):
        checked(token)


def test_audience_and_issuer() -> None:
    assert checked(signed(aud=["kafka", "x"]), STRICT).user == "alice"
    for claims in (
        {},
        {"aud": "x"},
        {"aud": 7},
        {"aud": "kafka", "iss": "https://foreign"},
        {"aud": "kafka", "iss": None},
    ):
        with pytest.raises(TokenError):
            checked(signed(**claims), STRICT)


@pytest.mark.parametrize(
    "data",
    [b'{"keys":[{"kty":["RSA"]}]}', b"", b"[]", b"{}", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [{"kty": "oct"}]}'],
)
def test_what_are_no_keys(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is no JSON Web Key Set|it has no key"):
        signed_tokens.read_keys(data)


OPTIONS = {
    "unsecuredLoginStringClaim_sub": "alice",
    "unsecuredLoginListClaim_scope": ",x,y",
    "unsecuredLoginNumberClaim_n": "3",
}


def unsecured(now_s: float = NOW_S, **more: str) -> Token:
    token = unsecured_tokens.made(OPTIONS, NOW_S * 1000)
    rules = UnsecuredRules.of({f"unsecuredValidator{name}": text for name, text in more.items()})
    return unsecured_tokens.check(token, rules, int(now_s * 1000))


def test_tokens_without_a_signature() -> None:
    assert unsecured() == Token("alice", (NOW_S + 3600) * 1000)
    just_made = unsecured_tokens.made(OPTIONS, NOW_S * 1000 + 0.4)  # of a client with a finer clock
    assert unsecured_tokens.check(just_made, UnsecuredRules.of({}), NOW_S * 1000).user == "alice"
    assert unsecured(RequiredScope="x y").user == "alice"
    with pytest.raises(TokenError) as lacks:
        unsecured(RequiredScope="x z")
    assert lacks.value.told == '{"status":"insufficient_scope", "scope":"[x, z]"}'  # as Kafka
    assert unsecured(NOW_S + 3602, AllowableClockSkewMs="3000").user == "alice"
    for now_s in (NOW_S + 3600, NOW_S - 1):
        with pytest.raises(TokenError):
            unsecured(now_s)
    with pytest.raises(TokenError, match="signed"):
        unsecured_tokens.check(signed(), UnsecuredRules.of({}), NOW_S * 1000)


@pytest.mark.parametrize(
    "options",
    [{}, OPTIONS | {"unsecuredLoginStringClaim_exp": "1"}, OPTIONS | {"unsecuredLoginLifetimeSeconds": "x"}],
)
def test_a_token_that_cannot_be_made(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="unsecuredLogin"):
        unsecured_tokens.made(options, 0)


def step(message: bytes) -> OAuthServer:
    server = OAuthServer(checked)
    server.step(message)
    return server


def test_both_sides_agree() -> None:
    client, server = OAuthClient(signed()), OAuthServer(checked)
    assert client.step(server.step(client.first())) is None
    assert (server.user, server.expires_ms) == ("alice", (NOW_S + 3600) * 1000)


def test_a_refusal_takes_two_steps() -> None:
    client, server = OAuthClient(signed(aud="x")), OAuthServer(checked)
    told = server.step(client.first())
    assert told == b'{"status":"invalid_token"}'
    with pytest.raises(AuthenticationError) as refused:
        server.step(client.step(told) or b"")
    assert str(refused.value) == '{"status":"invalid_token"}'
    assert "aud" in refused.value.why
    assert not server.is_complete
    with pytest.raises(AuthenticationError):  # it is too late for another token
        server.step(OAuthClient(signed()).first())


def test_what_a_first_message_may_say() -> None:
    token = signed().encode()
    assert step(b"n,a=alice,\x01auth=Bearer " + token + b"\x01\x01").user == "alice"
    assert step(b"n,,\x01auth=bearer  " + token + b"\x01trace=1 2\x01\x01").user == "alice"
    for message in (
        b"",
        b"xx",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer " + token + b"\x01\x01",
        b"n,,\x01auth=Basic " + token + b"\x01\x01",
        b"n,,\x01auth=Bearer " + token + b"\x01",
        b"n,,\x01auth=Bearer " + token + b"\x011=2\x01\x01",
        b"n,a=bob,\x01auth=Bearer " + token + b"\x01\x01",
        b"n,,\x01" + b"a=b\x01" * 100_000,
    ):
        with pytest.raises(AuthenticationError):
            step(message)


def test_a_very_long_token_is_refused_unread() -> None:
    """Somebody who has not logged in could have the broker check half a megabyte for everybody else to wait."""

    def must_not_be_asked(token: str) -> Token:
        raise AssertionError

    assert step(OAuthClient(signed(scope=["s" * 40_000])).first()).user == "alice"
    with pytest.raises(AuthenticationError) as refused:
        OAuthServer(must_not_be_asked).step(OAuthClient(signed(scope=["s" * 60_000])).first())
    assert "65,536 at most" in refused.value.why


def test_without_keys_and_without_a_jaas_line_nobody_is_trusted() -> None:
    assert [name for name, _ in problems_of_validation({}.get, None)] == [KEYS_URL]
    assert list(problems_of_validation({}.get, {})) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (KEYS_URL, "ftp://x/y"),
        (KEYS_URL, "keys.json"),
        (KEYS_URL, "http://[x"),
        ("sasl.oauthbearer.jwks.endpoint.refresh.ms", "-1"),
        ("sasl.oauthbearer.clock.skew.seconds", "x"),
    ],
)
def test_settings_that_are_wrong(name: str, text: str) -> None:
    settings = {KEYS_URL: "https://issuer.test/keys"} | {name: text}
    assert [found for found, _ in problems_of_validation(settings.get, None)] == [name]


def test_a_token_of_ones_own() -> None:
    def read(path: str) -> bytes:
        assert path == "/a b"
        return b"token\n"

    assert own_tokens.own_token({"sasl.oauthbearer.token.endpoint.url": "file:///a%20b"}.get, {}, 0, read) == "token"
    asked: list[Any] = []

    def ask(url: str, body: bytes, headers: Any) -> bytes:
        asked.append((url, body, headers["Authorization"]))
        return b'{"access_token": "token"}'

    settings = {"sasl.oauthbearer.token.endpoint.url": "https://issuer.test/token", "sasl.oauthbearer.scope": "a b"}
    options = {"clientId": "me", "clientSecret": "secret"}
    assert own_tokens.own_token(settings.get, options, 0, read, ask) == "token"
    assert asked == [("https://issuer.test/token", b"grant_type=client_credentials&scope=a+b", "Basic bWU6c2VjcmV0")]
    for answer in (b"", b"[]", b"{}", b'{"access_token": "a b"}'):
        with pytest.raises(LoginError) as refused:
            own_tokens.own_token(settings.get, options, 0, read, lambda *_, answer=answer: answer)
        assert "secret" not in str(refused.value)


class World:
    """A server of keys, and time."""

    def __init__(self, **rules: Any) -> None:
        self.env = sim_env(1)
        self.answer: bytes | Exception = ISSUER.keys()
        self.asked = 0
        known: dict[str, Any] = {"keys_url": "https://issuer.test/keys", "refresh_ms": 60_000} | rules
        self.keys = SigningKeys(self.env, "SASL", PLAIN_RULES._replace(**known), self.ask)

    def ask(self, url: str) -> bytes:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def wait(self, seconds: int) -> None:
        async def story() -> None:
            for _ in range(seconds):
                self.keys.refresh()
                await self.env.clock.sleep(1_000)

        self.env.run(story())

    def takes(self, issuer: Issuer, **claims: Any) -> bool:
        try:
            self.keys.check(issuer.token(now_s=self.env.clock.now_ms() / 1000, **claims))
        except TokenError:
            return False
        return True


def test_keys_are_asked_for_again_and_again() -> None:
    world = World()
    assert not world.takes(ISSUER)
    world.wait(1)
    assert world.takes(ISSUER)
    world.wait(50)
    assert world.asked == 1
    world.wait(20)
    assert world.asked == 2


def test_a_server_that_is_away_is_asked_again_and_the_keys_stay(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.wait(1)
    world.answer = WebError("the server answers 503")
    world.wait(120)
    assert world.takes(ISSUER)
    assert 5 < world.asked < 20  # a pause of ten seconds at last
    assert caplog.text.count("503") == 1
    world.answer = FOREIGN.keys()
    world.wait(15)
    assert world.takes(FOREIGN)
    assert not world.takes(ISSUER)


def test_an_unknown_key_has_the_server_asked_but_not_all_the_time() -> None:
    world = World()
    world.wait(20)
    changed = Issuer("two")
    world.answer = changed.keys()
    assert not world.takes(changed)
    world.wait(2)
    assert world.takes(changed)
    for number in range(5):
        assert not world.takes(ISSUER, key_id=f"made up {number}")
        world.wait(1)
    assert world.asked == 2


def test_a_file_is_read_again_when_it_changes() -> None:
    world = World(keys_url="file:///keys")
    write(world.env, ISSUER.keys())
    world.keys.load()
    assert world.takes(ISSUER)
    write(world.env, b"{}")
    world.wait(2)
    assert world.takes(ISSUER)
    write(world.env, Issuer("two").keys() + b" ")
    world.wait(2)
    assert not world.takes(ISSUER)
    assert world.asked == 0


def test_a_file_that_could_not_be_read_for_a_moment_is_read_later() -> None:
    """Until 2026-11-30 it was not, before it changed once more: an operator corrects its mode, and nothing else."""
    world = World(keys_url="file:///keys")
    write(world.env, Issuer("two").keys())
    world.keys.load()
    write(world.env, ISSUER.keys() + b" ")
    world.env.disk.fail("open", "/keys", PermissionError(13, "Permission denied"), times=2)
    world.wait(2)
    assert not world.takes(ISSUER)
    world.wait(2)
    assert world.takes(ISSUER)


def test_a_start_without_its_file_is_refused() -> None:
    with pytest.raises(LoginError, match=r"SASL: sasl\.oauthbearer\.jwks\.endpoint\.url=file:///keys"):
        World(keys_url="file:///keys").keys.load()


def write(env: SimEnv, data: bytes) -> None:
    if env.disk.exists("/keys"):
        env.disk.remove("/keys")
    file = env.disk.open("/keys", create=True)
    file.write(0, data)
    file.close()
