"""`barnabas secure init`: its two lines work, and so do its files, with each client library as it is."""

import asyncio
import fcntl
import json
import shlex
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import forked
import pytest
from aiokafka import AIOKafkaProducer
from barnabas.config.properties import read
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from ports import free_port

pytestmark = pytest.mark.timeout(280)
HERE = Path(__file__).parent
GO_MAIN = """
package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	client, err := kgo.NewClient(securedOptions()...)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	record := &kgo.Record{Topic: "orders", Value: []byte("go")}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		panic(err)
	}
	fmt.Println("sent")
}
"""
NODE_MAIN = """
const { Kafka } = require("kafkajs");
const kafka = new Kafka({ ...require(process.argv[2]), logLevel: 1 });
(async () => {
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic: "orders", messages: [{ value: "node" }] });
  await producer.disconnect();
  console.log("sent");
})();
"""


def run(*words: str, code: int = 0, **environment: str) -> str:
    done = forked.barnabas(*words, code=code, **environment)
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder, and the second of its two lines. The first one runs."""
    port = free_port()
    folder = tmp_path_factory.mktemp("made") / "secured"
    start, use = run("secure", "init", str(folder), "--port", str(port), "--user", "orders-service").splitlines()
    assert start == f"barnabas start --config {folder}/server.properties"
    command = [sys.executable, "-m", *start.split(), "--json"]
    with (folder / "broker.log").open("w") as log:
        process = forked.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (folder / "broker.log").read_text()
    target = use.split()[use.split().index("--bootstrap") :]
    run("topics", "create", "orders", *target)  # by its user: the file of the second line has the right
    yield folder, use
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0
    log_text = (folder / "broker.log").read_text()
    assert "Traceback" not in log_text
    assert "whoever reaches" not in log_text
    assert json.loads((folder / "kafka-python.json").read_text())["sasl_plain_password"] not in log_text


def test_its_second_line_works(secured: tuple[Path, str]) -> None:
    _, use = secured
    assert "orders" in run(*use.removeprefix("barnabas ").split())


def test_nobody_else_may_read_its_files(secured: tuple[Path, str]) -> None:
    folder, _ = secured
    for path in (folder, *folder.iterdir()):
        if path.name != "broker.log":  # of the test
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_user_may_read_and_write_and_nothing_else(secured: tuple[Path, str]) -> None:
    folder, use = secured
    target = use.split()[use.split().index("--bootstrap") :]
    told = run("acls", "add", "User:mallory", "all", "topic", "*", *target, code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in told or "right" in told
    port = int(target[1].rpartition(":")[2]) + 1
    admin = ["--bootstrap", f"localhost:{port}", "--command-config", str(folder / "admin.properties")]
    assert "User:orders-service" in run("acls", "list", *admin)


def test_python_clients(secured: tuple[Path, str]) -> None:
    folder, _ = secured
    settings = json.loads((folder / "kafka-python.json").read_text())
    producer = KafkaProducer(**settings)
    producer.send("orders", b"kafka-python").get(timeout=200)
    producer.close()
    delivered: list[Any] = []
    sender = Producer(json.loads((folder / "confluent-kafka.json").read_text()) | {"log_level": 2})
    sender.produce("orders", b"librdkafka", on_delivery=lambda error, _: delivered.append(error))
    assert sender.flush(200) == 0
    assert delivered == [None]
    found = AdminClient(json.loads((folder / "confluent-kafka.json").read_text())).list_topics(timeout=200)
    assert "orders" in found.topics
    spec = spec_from_file_location("aiokafka_settings", folder / "aiokafka_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    spec.loader.exec_module(module)
    sys.dont_write_bytecode = before

    async def send() -> None:
        producer = AIOKafkaProducer(**module.settings())
        await producer.start()
        await producer.send_and_wait("orders", b"aiokafka")
        await producer.stop()

    asyncio.run(send())
    consumer = KafkaConsumer(
        "orders", **settings, group_id="any", auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    values = [next(consumer).value for _ in range(3)]
    consumer.close()
    assert values[:3] == [b"kafka-python", b"librdkafka", b"aiokafka"]


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain: franz-go cannot be built")
def test_franz_go(secured: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = secured
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / "go" / name, tmp_path)
    shutil.copy(folder / "franz_go.go", tmp_path)
    (tmp_path / "main.go").write_text(GO_MAIN)
    build = ["go", "run", "-mod=mod", "."]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout) == (0, "sent\n"), done


@pytest.mark.skipif(shutil.which("npm") is None, reason="no Node.js: KafkaJS cannot be installed")
def test_kafkajs(secured: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = secured
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "node" / name, tmp_path)
    subprocess.run(["npm", "ci", "--silent"], cwd=tmp_path, check=True, timeout=250)
    (tmp_path / "main.js").write_text(NODE_MAIN)
    command = ["node", "main.js", str(folder / "kafkajs_settings.js")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "sent\n"), done


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    assert "is not empty" in run("secure", "init", str(tmp_path), code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    for name in ("a b", "", "u" * 65, "ca", "\u00fc"):
        assert "make a name" in run("secure", "init", str(tmp_path / "new"), "--user", name, code=2)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("host", ["", "a b", "x:9092", "0.0.0.0", "b\u00fccher.example", ":::", "SASL_SSL://x"])
def test_a_host_that_is_none_is_refused(tmp_path: Path, host: str) -> None:
    assert "by which other machines reach this one" in run(
        "secure", "init", str(tmp_path / "new"), "--host", host, code=2
    )
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["a,b", 'quoted"', "it's", "$HOME"])
def test_a_folder_that_cannot_stand_in_the_files_is_refused(tmp_path: Path, name: str) -> None:
    assert "cannot stand in its path" in run("secure", "init", str(tmp_path / name), code=2)
    assert list(tmp_path.iterdir()) == []


def test_its_lines_can_be_copied_when_the_folder_has_blanks(tmp_path: Path) -> None:
    made = run("secure", "init", str(tmp_path / "my folder"), "--host", "2001:db8::1").splitlines()
    start, use = map(shlex.split, made)
    assert Path(start[-1]).read_text().count("[2001:db8::1]:9092") == 1
    assert use[-3] == "[2001:db8::1]:9092"
    assert Path(use[-1]).exists()


def test_java_clients_find_the_folder_whatever_its_name_is(tmp_path: Path) -> None:
    """java.util.Properties takes the bytes of a file for ISO 8859-1."""
    folder = tmp_path / "gesch\u00fctzt \U0001f512"
    run("secure", "init", str(folder))
    for name in ("client.properties", "admin.properties", "server.properties"):
        text = (folder / name).read_bytes().decode("ascii")
        assert read(text).values["ssl.truststore.location"] == str(folder / "ca.pem")


def test_one_that_is_killed_leaves_no_broker_and_nothing_that_starts(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-m", "barnabas", "secure", "init", str(folder)])
    while not (folder / "data" / ".lock").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert "is not complete" in run("secure", "init", str(folder), code=1)
    assert "there is no file" in run("start", "--config", str(folder / "server.properties"), code=2)
    with (folder / "data" / ".lock").open("r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # returns when its broker has ended


def test_a_start_for_tests_tells_what_clients_need() -> None:
    words = ("start", "--profile", "ci", "--secured", "--port", "0", "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        told = ready["security"]
        producer = KafkaProducer(
            bootstrap_servers=ready["bootstrap"],
            security_protocol=told["protocol"],
            ssl_context=ssl.create_default_context(cadata=told["ca"]),
            sasl_mechanism=told["mechanism"],
            sasl_plain_username=told["user"],
            sasl_plain_password=told["password"],
        )
        producer.send("t", b"x").get(timeout=200)
        producer.close()
    finally:
        process.terminate()
        _, log = process.communicate(timeout=200)
    assert told["password"] not in log
    assert told["http_token"] not in log
    assert "PRIVATE KEY" not in log
