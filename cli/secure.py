"""`barnabas secure`: everything that a broker with TLS, logins and access rules needs, and its clients."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from barnabas.cli.secured_start import HOSTS, SECRET_BYTES, new_authority
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.terminal import AsJson, new_app, print_json
from barnabas.config.addresses import is_ipv6
from barnabas.runtime.env import real
from barnabas.runtime.own_command import OWN_COMMAND

if TYPE_CHECKING:
    from barnabas.cluster.security.authority import Authority

app = new_app("""A secured broker: its authority, certificates, users, rules, and the files for its clients.

    \b
    barnabas secure init ./secured
    """)

PORT = 9092
USER = "app"
# Lists of settings have commas between them, and the clients' files have strings in quotes.
NOT_IN_PATHS = re.compile(r"""[,"'`$\x00-\x1f]""")
USER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # a name in a certificate has no more characters
NOT_USERS = ("admin", "broker", "ca")  # whose files have these names
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
AGAIN = "Remove it, and make it again."
UNFINISHED = "server.properties.unfinished"
ENDS_WITHIN_S = 60
SCRAM = "SCRAM-SHA-512"
RULES = (
    ("create,read,write,describe", "topic", "*"),
    ("read,describe", "group", "*"),
    ("write,describe", "transactional-id", "*"),
    ("idempotent-write", "cluster", ""),
)
SERVER = """\
# A broker with TLS, logins and access rules. The files name this folder: move it, and change them.
# Clients log in at SASL_SSL, or show a certificate at SSL, as brokers do.
listeners=SASL_SSL://{listen}:{port},SSL://{listen}:{next_port}
advertised.listeners=SASL_SSL://{host}:{port},SSL://{host}:{next_port}
security.inter.broker.protocol=SSL
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.ssl.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]*).*$/$1/
sasl.enabled.mechanisms=SCRAM-SHA-512
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:broker;User:admin
log.dirs={folder}/data
http.token={token}
"""
ADMIN = """\
security.protocol=SSL
ssl.keystore.type=PEM
ssl.keystore.location={folder}/admin.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
"""
CLIENT = """\
bootstrap.servers={host}:{port}
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="{user}" password="{password}";
"""
AIOKAFKA = '''\
"""aiokafka: AIOKafkaProducer(**settings())"""

import ssl


def settings():
    return {{
        "bootstrap_servers": "{host}:{port}",
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile="{folder}/ca.pem"),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "{user}",
        "sasl_plain_password": "{password}",
    }}
'''

KAFKAJS = """\
// KafkaJS: new Kafka(require("./kafkajs_settings.js"))
module.exports = {{
  brokers: ["{host}:{port}"],
  ssl: {{ ca: [require("fs").readFileSync("{folder}/ca.pem")] }},
  sasl: {{ mechanism: "scram-sha-512", username: "{user}", password: "{password}" }},
}};
"""
FRANZ_GO = """\
// franz-go: kgo.NewClient(securedOptions()...)
package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func securedOptions() []kgo.Opt {{
	authority, err := os.ReadFile("{folder}/ca.pem")
	if err != nil {{
		panic(err)
	}}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(authority)
	return []kgo.Opt{{
		kgo.SeedBrokers("{host}:{port}"),
		kgo.DialTLSConfig(&tls.Config{{RootCAs: authorities}}),
		kgo.SASL(scram.Auth{{User: "{user}", Pass: "{password}"}}.AsSha512Mechanism()),
	}}
}}
"""


@app.callback()
def _secure() -> None:
    """Has typer take the name of the only command."""


@app.command()
def init(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder that is not there yet, or is empty.")],
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="NAME", help="How other machines reach the broker; without it this one only."),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65534, help="Of SASL_SSL; SSL has the next one.")] = PORT,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Who may read and write all topics.")] = USER,
    as_json: AsJson = False,
) -> None:
    """Make an authority, certificates, a user, access rules, and files for the broker and its clients.

    \b
    barnabas secure init ./secured
    barnabas secure init ./secured --host kafka1.example --user orders-service
    """
    authority = new_authority(real())
    if not USER_NAME.fullmatch(user) or user in NOT_USERS:
        message = f"--user {user!r}: up to 64 letters, digits and -_. make a name, other than {', '.join(NOT_USERS)}."
        fail(message, ExitCode.NOT_VALID)
    is_of_ipv6 = host is not None and is_ipv6(host)
    if host is not None and (host in ("0.0.0.0", "::") or not (is_of_ipv6 or HOST.fullmatch(host))):
        message = f"--host {host!r}: the name or the address by which other machines reach this one."
        fail(message, ExitCode.NOT_VALID)
    folder = _empty_folder(directory)
    words = {
        "folder": folder.replace("\\", "\\\\"),
        "listen": "127.0.0.1" if host is None else "[::]" if is_of_ipv6 else "0.0.0.0",
        "host": f"[{host}]" if is_of_ipv6 else host or "localhost",
        "port": port,
        "next_port": port + 1,
        "user": user,
        "password": real().secret_bytes(SECRET_BYTES).hex(),
        "token": real().secret_bytes(SECRET_BYTES).hex(),
    }
    hosts = (*HOSTS, *([] if host is None else [host]))
    files = _files(authority, folder, hosts, words)
    try:
        for name, text in files.items():
            _write(f"{folder}/{name}", text)
        _make_user_and_rules(folder, user, str(words["password"]))
        real().disk.rename(f"{folder}/{UNFINISHED}", f"{folder}/server.properties")  # last: now it is complete
    except OSError as error:
        fail(f"{directory} is not complete: {error.strerror or error}. {AGAIN}")
    start = f"barnabas start --config {shlex.quote(f'{directory}/server.properties')}"
    use = f"barnabas topics list --bootstrap {words['host']}:{port} --command-config "
    use += shlex.quote(f"{directory}/client.properties")
    if as_json:
        names = sorted({*files, "server.properties"} - {UNFINISHED})
        print_json({"start": start, "use": use, "files": names})
    else:
        print(f"{start}\n{use}")


def _files(authority: "Authority", folder: str, hosts: Sequence[str], words: Mapping[str, str | int]) -> dict[str, str]:
    """What stands in each file of the folder."""
    return {
        UNFINISHED: SERVER.format(**words),  # first, so that it is there as long as something is missing
        "ca.pem": authority.pem,
        "ca.key": authority.key_pem,
        "broker.pem": authority.sign("broker", hosts),
        "admin.pem": authority.sign("admin"),
        f"{words['user']}.pem": authority.sign(str(words["user"])),
        "admin.properties": ADMIN.format(**words),
        "client.properties": CLIENT.format(**words),
        "kafka-python.json": _for_kafka_python(folder, words),
        "confluent-kafka.json": _for_librdkafka(folder, words),
        "aiokafka_settings.py": AIOKAFKA.format(**words),
        "kafkajs_settings.js": KAFKAJS.format(**words),
        "franz_go.go": FRANZ_GO.format(**words),
    }


def _empty_folder(directory: str) -> str:
    folder, disk = os.path.abspath(directory), real().disk
    if NOT_IN_PATHS.search(folder):
        fail(f"{folder!r}: commas, quotes and $ cannot stand in its path: name another folder.", ExitCode.NOT_VALID)
    os.umask(0o077)  # the keys are for nobody else
    try:
        disk.make_directory(folder)
        if disk.exists(f"{folder}/{UNFINISHED}"):
            fail(f"{directory} is not complete: what made it was ended. {AGAIN}")
        if disk.list_directory(folder):
            fail(f"{directory} is not empty, and nothing there is written over: name another folder.")
    except OSError as error:
        fail(f"{directory} cannot be used: {error.strerror or error}.")
    return folder


def _write(path: str, text: str) -> None:
    file = real().disk.open(path, create=True)
    is_java = ".properties" in path.rpartition("/")[2]
    file.write(0, (_as_java_reads(text) if is_java else text).encode())
    file.sync()
    file.close()


def _as_java_reads(text: str) -> str:
    """For a .properties file: Java's clients take its bytes for ISO 8859-1, so a folder's name may need escapes."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


def _for_kafka_python(folder: str, words: Mapping[str, str | int]) -> str:
    settings = {
        "bootstrap_servers": f"{words['host']}:{words['port']}",
        "security_protocol": "SASL_SSL",
        "ssl_cafile": f"{folder}/ca.pem",
        "sasl_mechanism": SCRAM,
        "sasl_plain_username": words["user"],
        "sasl_plain_password": words["password"],
    }
    return json.dumps(settings, indent=2) + "\n"


def _for_librdkafka(folder: str, words: Mapping[str, str | int]) -> str:
    settings = {
        "bootstrap.servers": f"{words['host']}:{words['port']}",
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": f"{folder}/ca.pem",
        "sasl.mechanism": SCRAM,
        "sasl.username": words["user"],
        "sasl.password": words["password"],
    }
    return json.dumps(settings, indent=2) + "\n"


def _make_user_and_rules(folder: str, user: str, password: str) -> None:
    """They are in the tree, so the broker is started for a moment, for this machine only."""
    with _broker(folder) as bootstrap:
        _run(folder, bootstrap, "users", "add", user, "--mechanism", SCRAM, stdin=f"{password}\n")
        for operations, kind, name in RULES:
            _run(folder, bootstrap, "acls", "add", f"User:{user}", operations, kind, *([name] if name else []))


@contextmanager
def _broker(folder: str) -> Iterator[str]:
    command = [*OWN_COMMAND, "start", "--json", "--exit-with-parent"]
    command += ["--config", f"{folder}/{UNFINISHED}"]
    settings = {
        "listeners": "SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "advertised.listeners": "",
        "http.listeners": "none",
    }
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            last = process.communicate()[1].strip().rpartition("\n")[2]
            fail(f"the broker does not start: {last.removeprefix('barnabas: ')}. {AGAIN}")
        yield str(json.loads(line)["bootstrap"])
    finally:
        process.terminate()
        process.communicate(timeout=ENDS_WITHIN_S)


def _run(folder: str, bootstrap: str, *words: str, stdin: str = "") -> None:
    command = [*OWN_COMMAND, *words]
    command += ["--bootstrap", bootstrap, "--command-config", f"{folder}/admin.properties"]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=ENDS_WITHIN_S)
    if done.returncode:
        fail(f"{' '.join(words[:2])} has failed: {done.stderr.strip().removeprefix('barnabas: ')} {AGAIN}")
