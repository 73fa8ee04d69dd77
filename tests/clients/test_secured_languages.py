"""Every client library over each protocol and mechanism: right and wrong passwords, tokens and certificates, logins
that end in mid-stream, and a certificate of the broker that is renewed meanwhile.

Each library has a program that goes through the same cases at the same time, and says how each ended.
"""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.request import Request, urlopen

import forked
import pytest
from certificates import Authority
from ports import free_port
from test_java_copier import class_path
from tokens import Issuer

pytestmark = pytest.mark.timeout(580)

BrokerProcess: TypeAlias = Any  # of conftest.py
HERE = Path(__file__).resolve().parent
ISSUER, FOREIGN = Issuer(), Issuer(name="https://foreign.test")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROTOCOLS = {"SSL": "SSL", "SASL": "SASL_PLAINTEXT", "BOTH": "SASL_SSL", "ENDING": "SASL_SSL"}  # by listener
KNOWS_RIGHT, KNOWS_WRONG = "alice-secret", "planted-wrong"
ENDS_AFTER_S, STREAM_S = 4, 10
JAAS = "org.apache.kafka.common.security"
MODULES = {"PLAIN": "plain.PlainLoginModule", "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule"}
SCRAM = "scram.ScramLoginModule"


class Case(NamedTuple):
    """What a client does at one listener, and whether it is let in."""

    listener: str
    mechanism: str | None = None
    wrong: str | None = None  # what of it is wrong
    seconds: float = 0

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.listener, self.mechanism, self.wrong))).lower()


RIGHT = [
    Case("SSL"),
    *(Case(listener, mechanism) for listener in ("SASL", "BOTH") for mechanism in MECHANISMS),
    *(Case("ENDING", mechanism, seconds=STREAM_S) for mechanism in ("SCRAM-SHA-512", "OAUTHBEARER")),
]
WRONG = [
    *(Case("SSL", wrong=wrong) for wrong in ("expired", "foreign", "authority")),
    *(Case("BOTH", mechanism, "login") for mechanism in MECHANISMS),
    Case("BOTH", "PLAIN", "authority"),
]


class Tokens(BaseHTTPRequestHandler):
    """Gives out tokens: /SECONDS for as long, or a second longer; /wrong by somebody else."""

    def do_GET(self) -> None:
        issuer, lifetime = (FOREIGN, 3600.0) if "wrong" in self.path else (ISSUER, float(self.path[1:]))
        body = json.dumps({"access_token": issuer.token(lifetime_s=lifetime + 1, scope="kafka")}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *words: Any) -> None: ...


class Secured:
    """A broker with a listener of each kind."""

    def __init__(self, make_broker: Callable[..., BrokerProcess], folder: Path, tokens: str) -> None:
        self.folder, self.tokens = folder, tokens
        self.authority = Authority()
        self.ca = self.authority.write_pem(folder / "ca.pem")
        self.keys = self.authority.sign("broker").write_pem(folder / "broker.pem")
        certificates = {
            "right": self.authority.sign("alice"),
            "expired": self.authority.sign("alice", days=-1),
            "foreign": Authority("foreign").sign("alice"),
        }
        self.certificates = {name: each.write_pem(folder / f"{name}.pem") for name, each in certificates.items()}
        self.other_ca = Authority("other").write_pem(folder / "other.pem")
        self.ports = {name: free_port() for name in PROTOCOLS}
        self.http = f"http://127.0.0.1:{free_port()}"
        self.broker = make_broker(
            "listeners=PLAINTEXT://127.0.0.1:0,"
            + ",".join(f"{name}://localhost:{port}" for name, port in self.ports.items()),
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,"
            + ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
            "inter.broker.listener.name=PLAINTEXT",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={self.keys}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.ca}",
            "ssl.client.auth=required",
            "ssl.principal.mapping.rules=RULE:^CN=([^,]*).*$/$1/",
            f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
            *(
                f"listener.name.{name.lower()}.plain.sasl.jaas.config={JAAS}.{MODULES['PLAIN']} required "
                f'user_alice="{KNOWS_RIGHT}";'
                for name in PROTOCOLS
                if name != "SSL"
            ),
            f"sasl.oauthbearer.jwks.endpoint.url={ISSUER.write_keys(folder / 'keys.json')}",
            f"listener.name.ending.connections.max.reauth.ms={ENDS_AFTER_S * 1000}",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS;User:alice",
            f"http.listeners={self.http}",
            "http.token=planted-token",
        )
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            words = ("users", "add", "alice", "--mechanism", mechanism, "--bootstrap", self.broker.bootstrap)
            forked.barnabas(*words, code=0, given=f"{KNOWS_RIGHT}\n")

    def as_json(self, case: Case, library: str) -> dict[str, Any]:
        """The case as programs read it."""
        has_tls = PROTOCOLS[case.listener].endswith("SSL")
        own = self.certificates.get(case.wrong or "right", self.certificates["right"])
        lifetime = ENDS_AFTER_S if case.seconds else 3600
        return {
            "name": case.name,
            "bootstrap": f"localhost:{self.ports[case.listener]}",
            "mechanism": case.mechanism or "",
            "user": "alice",
            "password": KNOWS_WRONG if case.wrong == "login" else KNOWS_RIGHT,
            "token_url": f"{self.tokens}/{'wrong' if case.wrong == 'login' else lifetime}",
            "token_s": lifetime,
            "ca": (self.other_ca if case.wrong == "authority" else self.ca) if has_tls else "",
            "certificate": own if case.listener == "SSL" else "",
            "topic": f"{library}-{case.name}",
            "seconds": case.seconds,
            "is_right": case.wrong is None,
        }

    def as_properties(self, case: Case) -> str:
        """The case as Java's clients read it."""
        one = self.as_json(case, "java")
        scram_or_own = MODULES.get(case.mechanism or "", SCRAM)
        own = {
            "bootstrap.servers": one["bootstrap"],
            "security.protocol": PROTOCOLS[case.listener],
            "group.id": one["topic"],
            "auto.offset.reset": "earliest",
            "story.name": one["name"],
            "story.topic": one["topic"],
            "story.seconds": one["seconds"],
        }
        if one["ca"]:
            own |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": one["ca"]}
        if one["certificate"]:
            own |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": one["certificate"]}
        if case.mechanism == "OAUTHBEARER":
            own |= {
                "sasl.mechanism": case.mechanism,
                "sasl.login.callback.handler.class": f"{JAAS}.oauthbearer.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": one["token_url"],
                "sasl.jaas.config": f'{JAAS}.{scram_or_own} required clientId="me" clientSecret="secret";',
                "sasl.login.refresh.min.period.seconds": 0,
                "sasl.login.refresh.buffer.seconds": 0,
            }
        elif case.mechanism is not None:
            login = f'username="{one["user"]}" password="{one["password"]}"'
            own |= {"sasl.mechanism": case.mechanism, "sasl.jaas.config": f"{JAAS}.{scram_or_own} required {login};"}
        return "".join(f"{name}={value}\n" for name, value in own.items())

    def ended_logins(self) -> float:
        """How many connections were closed because their clients had not logged in again in time."""
        asked = Request(f"{self.http}/metrics", headers={"Authorization": "Bearer planted-token"})
        with urlopen(asked, timeout=200) as answer:
            lines = answer.read().decode().splitlines()
        [value] = [line.split()[-1] for line in lines if line.startswith("barnabas_ended_logins_total ")]
        return float(value)

    def renew(self, wait_until: Callable[..., None]) -> None:
        """Put another certificate in the place of the broker's; return when it is in use."""
        line = "listener ENDING: keys and certificates were read again"
        before = self.broker.log.read_text().count(line)
        self.authority.sign("broker").write_pem(Path(self.keys))
        wait_until(lambda: self.broker.log.read_text().count(line) > before)


@pytest.fixture(scope="module")
def secured(make_broker: Callable[..., BrokerProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tokens)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Secured(make_broker, tmp_path_factory.mktemp("secured"), f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def go_through(secured: Secured, command: list[str], wait_until: Callable[..., None], stream: str, folder: Path) -> str:
    """What a program says. The broker's certificate is renewed while it writes."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as program:
        try:
            log = secured.broker.log
            wait_until(lambda: stream in log.read_text() or program.poll() is not None)
            secured.renew(wait_until)
            told, errors = program.communicate(timeout=300)
        except BaseException:
            program.kill()
            raise
    assert program.returncode == 0, told + errors
    assert KNOWS_WRONG not in secured.broker.log.read_text()
    return told


def check(told: dict[str, str], late: tuple[str, ...] = ()) -> None:
    """`late`: where the client takes the broker's first answer for a yes, and hears of the no with its next request."""
    assert told.keys() == {case.name for case in (*RIGHT, *WRONG)}
    assert {name: text for name, text in told.items() if text == "ok"}.keys() == {case.name for case in RIGHT}, told
    for case in WRONG:
        assert told[case.name].startswith("failed: " if case.name in late else "refused: "), told


def run(
    secured: Secured,
    library: str,
    command: list[str],
    wait_until: Callable[..., None],
    folder: Path,
    late: tuple[str, ...] = (),
) -> None:
    """Go through all cases."""
    path = folder / "cases.json"
    path.write_text(json.dumps([secured.as_json(case, library) for case in (*RIGHT, *WRONG)]))
    check(json.loads(go_through(secured, [*command, str(path)], wait_until, f"{library}-ending", folder)), late)


@pytest.mark.takes_turns("library")
@pytest.mark.parametrize("library", ["kafka-python", "aiokafka", "confluent-kafka"])
def test_python(secured: Secured, library: str, wait_until: Callable[..., None], tmp_path: Path) -> None:
    """aiokafka never logs in again (KIP-368): it is closed, connects anew, and loses nothing."""
    before = secured.ended_logins()
    run(secured, library, [sys.executable, str(HERE / "secured_clients.py"), library], wait_until, tmp_path)
    assert library != "aiokafka" or secured.ended_logins() > before


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain: franz-go cannot be built")
def test_franz_go(secured: Secured, wait_until: Callable[..., None], tmp_path: Path) -> None:
    program = tmp_path / "secured"
    subprocess.run(["go", "build", "-o", str(program), "./secured"], cwd=HERE / "go", check=True, timeout=280)
    run(secured, "franz-go", [str(program)], wait_until, tmp_path)


@pytest.mark.skipif(shutil.which("npm") is None, reason="no Node.js: KafkaJS cannot be installed")
def test_kafkajs(secured: Secured, wait_until: Callable[..., None], tmp_path: Path) -> None:
    for file in ("package.json", "package-lock.json", "secured.js"):
        shutil.copy(HERE / "node" / file, tmp_path)
    subprocess.run(["npm", "ci", "--silent"], cwd=tmp_path, check=True, timeout=280)
    run(secured, "kafkajs", ["node", "secured.js"], wait_until, tmp_path, late=("both-oauthbearer-login",))


def test_java(secured: Secured, wait_until: Callable[..., None], tmp_path: Path) -> None:
    jars = class_path()
    for case in (*RIGHT, *WRONG):
        (tmp_path / f"{case.name}.properties").write_text(secured.as_properties(case))
    urls = ",".join(f"{secured.tokens}/{each}" for each in (3600, ENDS_AFTER_S, "wrong"))
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1"]
    command += [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}", "-cp", jars]
    command += [str(HERE / "java" / "Secured.java"), str(tmp_path)]
    told = go_through(secured, command, wait_until, "java-ending", tmp_path)
    check(dict(line.split("\t", 1) for line in told.splitlines()))
