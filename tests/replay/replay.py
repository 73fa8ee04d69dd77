"""Send Kafka's recorded stories to a running Barnabas and compare answer with answer.

    python tests/replay/replay.py                          all releases, a broker of its own for each
    python tests/replay/replay.py --release 4.1.0 --api CreateTopics --show 20
    python tests/replay/replay.py --connection 'groups-setup,groups-9-*'
    python tests/replay/replay.py --bootstrap 127.0.0.1:9092

Release 4.3.1 (made by record.py: what is new or other there than in 4.1) and 4.1.0 are compared in every version that
they and we offer, 3.9.1 only in the older versions that 4.1.0 no longer offers (its other exchanges are sent, since
they make the state).
What is left out, and which differences are accepted with what reason, stands in differences.toml. Exit code 1 when a
difference is in neither list.
"""

import argparse
import fnmatch
import gzip
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # for ports.py

from barnabas.protocol import frames
from barnabas.protocol.errors import ProtocolError
from comparison import Chosen, Difference, compare, has_errors, is_being_ended
from ports import free_port

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "wire"
RELEASES = ("4.3.1", "4.1.0", "3.9.1")
ANSWER_TIMEOUT_SECONDS = 12.0
# The recorder waited, unrecorded, until what it had set off was done: until the answer has no such error, it is asked
# again. Only questions that change nothing.
ASKED_AGAIN = {"Metadata", "FindCoordinator"}
AGAIN_TIMES, AGAIN_PAUSE_SECONDS = 40, 0.05
# A request that waits for others must have reached the broker before they are sent on other sockets.
OVERLAP_PAUSE_SECONDS = 0.03

# What the recorded broker evidently ran with (its answer to DescribeConfigs, source 4), where it has a meaning here.
SETTINGS = {
    "node.id": "1",
    "broker.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:27012",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "broker.rack": "rack-1",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "controlled.shutdown.enable": "false",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    # Of these the recording tells only that they were set, not to what.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
    "delegation.token.secret.key": "secret",
    "listener.name.sasl.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_admin="admin-secret" user_alice="alice-secret";'
    ),
    "listener.name.sasl.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
}


class Exchange(NamedTuple):
    """One recorded request and its answer: a line of tests/golden/wire/kafka-RELEASE.jsonl.gz.

    `request`, `response`: frames without their size, in hex (`response` null and `closed` true: Kafka closed the
    connection); `request_fields`, `response_fields`: the same decoded. `connection`: lines of one connection are one
    socket. `sent`, `answered`: moments of one clock for the whole run, so that requests which wait overlap others;
    `answered` null: there is no answer (acks=0). `case`: what the request tries, beginning with `ok`, `error`, `setup`.
    """

    position: int
    line: dict[str, Any]

    @property
    def api(self) -> str:
        return str(self.line["api"])

    @property
    def version(self) -> int:
        return int(self.line["version"])

    @property
    def name(self) -> str:
        return f"{self.api} v{self.version} {self.line['connection']} {self.line['case']!r} #{self.position}"


class Result(NamedTuple):
    """What became of an exchange that was compared."""

    exchange: Exchange
    differences: list[Difference]
    accepted: list[tuple[Difference, str]]


class Report:
    """All results of one release, and what was left out why."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.left_out: Counter[str] = Counter()
        self.sent_only = 0
        self.rules_used: Counter[str] = Counter()
        self.broker_errors: list[str] = []  # what our own broker's log says at level ERROR

    @property
    def different(self) -> list[Result]:
        return [result for result in self.results if result.differences]


class Rules:
    """differences.toml."""

    def __init__(self, path: Path = HERE / "differences.toml") -> None:
        content = tomllib.loads(path.read_text())
        self.skips: list[dict[str, Any]] = content.get("skip", [])
        self.accepted: list[dict[str, Any]] = content.get("difference", [])

    def reason_to_skip(self, release: str, exchange: Exchange) -> str | None:
        """Why this exchange is not sent; None when it is."""
        for rule in self.skips:
            if _applies(rule, release, exchange) and _mentions(rule, exchange):
                return str(rule["reason"])
        return None

    def reason_to_accept(self, release: str, exchange: Exchange, difference: Difference) -> str | None:
        """Why this difference is all right; None when it is not."""
        for rule in self.accepted:
            if not _applies(rule, release, exchange):
                continue
            if not any(fnmatch.fnmatchcase(difference.path, pattern) for pattern in _listed(rule["path"])):
                continue
            if "kafka" in rule and rule["kafka"] != _plain(difference.kafka):
                continue
            if "ours" in rule and rule["ours"] != _plain(difference.ours):
                continue
            return str(rule["reason"])
        return None


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _applies(rule: dict[str, Any], release: str, exchange: Exchange) -> bool:
    line = exchange.line
    if "release" in rule and rule["release"] != release:
        return False
    if "versions" in rule:
        first, _, last = str(rule["versions"]).partition("-")
        if not int(first) <= exchange.version <= int(last or first):
            return False
    for key, value in (("api", exchange.api), ("case", line["case"]), ("connection", line["connection"])):
        if key in rule and not any(fnmatch.fnmatchcase(value, pattern) for pattern in _listed(rule[key])):
            return False
    return True


def _mentions(rule: dict[str, Any], exchange: Exchange) -> bool:
    """For skips: `mentions` is a text that must stand in the request's fields (quoted names, ids)."""
    if "mentions" not in rule:
        return True
    text = json.dumps(exchange.line["request_fields"])
    return any(part in text for part in _listed(rule["mentions"]))


def load(release: str) -> list[Exchange]:
    """The exchanges of one release, in the order of the file."""
    with gzip.open(GOLDEN / f"kafka-{release}.jsonl.gz", "rt") as lines:
        return [Exchange(position, json.loads(line)) for position, line in enumerate(lines)]


def offered_by_recording(exchanges: Iterable[Exchange]) -> dict[int, range]:
    """api key -> versions, from the recorded answer to ApiVersions."""
    for exchange in exchanges:
        if exchange.api == "ApiVersions" and not exchange.line["errors"]:
            keys = exchange.line["response_fields"]["ApiKeys"]
            return {row["ApiKey"]: range(row["MinVersion"], row["MaxVersion"] + 1) for row in keys}
    raise ValueError("no answer to ApiVersions in the recording")


class Connection:
    """One socket, blocking."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.dead: str | None = None

    def send(self, frame: bytes) -> None:
        """A frame with its size in front. Errors are remembered and told by `receive`."""
        try:
            self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError as error:
            self.dead = f"connection lost while sending: {error}"

    def receive(self) -> bytes | str:
        """The next frame, or why there is none: "closed", "no answer in … s"."""
        if self.dead is not None:
            return self.dead
        try:
            head = self._exactly(4)
            return head if isinstance(head, str) else self._exactly(struct.unpack(">i", head)[0])
        except TimeoutError:
            self.dead = f"no answer in {ANSWER_TIMEOUT_SECONDS:g} s"
        except OSError as error:
            self.dead = f"connection lost: {error}"
        return self.dead

    def _exactly(self, size: int) -> bytes | str:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(size - len(data), 1 << 20))
            if not part:
                self.dead = "closed"
                return "closed"
            data += part
        return bytes(data)

    def close(self) -> None:
        self.socket.close()


class Replay:
    """One release against one broker."""

    def __init__(self, release: str, host: str, port: int, rules: Rules, sasl_port: int | None = None) -> None:
        self.release = release
        self.host, self.port, self.sasl_port = host, port, sasl_port
        self.rules = rules
        self.chosen = Chosen()
        self.report = Report()
        self.connections: dict[str, Connection] = {}
        self.exchanges = load(release)
        self.recorded = offered_by_recording(self.exchanges)
        self.newer = offered_by_recording(load("4.1.0")[:20]) if release == "3.9.1" else {}
        self.offered: dict[int, range] = {}
        self.knows_transactions = False

    def run(self, wanted: Callable[[Exchange], bool], shown: Callable[[Exchange], bool]) -> Report:
        """Send what is `wanted`, in the recorded order of sending and answering; compare what is also `shown`."""
        self.offered = self._ask_versions()
        self._prepare()
        waiting: set[int] = set()
        for kind, exchange in _in_order(exchange for exchange in self.exchanges if wanted(exchange)):
            if kind == "sent":
                reason = self._reason_to_leave_out(exchange)
                if reason is not None:
                    self.report.left_out[reason] += 1
                    continue
                self._prepare_transactions(exchange)
                self._connection(exchange).send(self._request(exchange))
                waiting.add(exchange.position)
                if exchange.line["answered"] != exchange.line["sent"] + 1:
                    time.sleep(OVERLAP_PAUSE_SECONDS)
            elif exchange.position in waiting:
                self._answered(exchange, shown(exchange))
        for connection in self.connections.values():
            connection.close()
        return self.report

    def _ask_versions(self) -> dict[int, range]:
        connection = Connection(self.host, self.port)
        connection.send(bytes.fromhex("00120000000000010006") + b"replay")
        answer = connection.receive()
        connection.close()
        if isinstance(answer, str):
            raise SystemExit(f"the broker at {self.host}:{self.port} does not answer ApiVersions: {answer}")
        _, response = frames.decode_response(18, 0, memoryview(answer))
        return {row.api_key: range(row.min_version, row.max_version + 1) for row in response.api_keys}

    def _prepare(self) -> None:
        """Kafka 4.1 formats a cluster with min.insync.replicas=1 as a cluster-wide dynamic setting (KIP-966)."""
        if self.release != "4.1.0" or 44 not in self.offered:
            return
        self._set("min.insync.replicas", "1")

    def _set(self, name: str, value: str | None) -> None:
        """Set the default of all brokers; None: remove it."""
        from barnabas.protocol.messages import IncrementalAlterConfigsRequest as Request

        setting = Request.AlterableConfig(name=name, config_operation=0 if value else 1, value=value)
        resource = Request.AlterConfigsResource(resource_type=4, resource_name="", configs=[setting])
        (answer,) = self._ask(44, 1, Request(resources=[resource])).responses
        assert not answer.error_code, answer

    def _prepare_transactions(self, exchange: Exchange) -> None:
        """Before the first producer of a transaction: the recorder had looked for its coordinator, unrecorded."""
        if self.knows_transactions or not exchange.line.get("request_fields", {}).get("TransactionalId"):
            return
        from barnabas.protocol.messages import FindCoordinatorRequest

        self.knows_transactions = True
        for _ in range(AGAIN_TIMES):
            if not self._ask(10, 2, FindCoordinatorRequest(key="any", key_type=1)).error_code:
                return
            time.sleep(AGAIN_PAUSE_SECONDS)
        raise SystemExit("there is no transaction coordinator")

    def _ask(self, key: int, version: int, message: Any) -> Any:
        """The answer to a request of our own."""
        connection = Connection(self.host, self.port)
        connection.send(frames.encode_request(key, version, 1, "replay", message)[4:])
        answer = connection.receive()
        connection.close()
        assert not isinstance(answer, str), answer
        return frames.decode_response(key, version, memoryview(answer))[1]

    def _reason_to_leave_out(self, exchange: Exchange) -> str | None:
        line = exchange.line
        if line["cluster"] != "single":
            return "needs more than one broker"
        if line["broker"] == "sasl" and self.sasl_port is None:
            return "needs a SASL listener"
        offered = exchange.version in self.offered.get(line["key"], range(0))
        if line.get("closed"):
            return "refused by that release, offered by us" if offered else None
        if "request_body_version" in line:
            return None
        if not offered:
            return f"API not offered: {exchange.api}" if line["key"] not in self.offered else "version not offered"
        return self.rules.reason_to_skip(self.release, exchange)

    def _connection(self, exchange: Exchange) -> Connection:
        name = exchange.line["connection"]
        if name not in self.connections:
            port = self.sasl_port if exchange.line["broker"] == "sasl" else self.port
            self.connections[name] = Connection(self.host, port or self.port)
        return self.connections[name]

    def _request(self, exchange: Exchange) -> bytes:
        """The recorded bytes; made anew only when one of our own values goes into them."""
        recorded = bytes.fromhex(exchange.line["request"])
        if exchange.line.get("closed") or "request_body_version" in exchange.line:
            return recorded
        header, message = frames.decode_request(memoryview(recorded))
        if not self.chosen.translate(message, header.api_version):
            return recorded
        made = frames.encode_request(
            header.api_key, header.api_version, header.correlation_id, header.client_id, message
        )
        return bytes(made)[4:]

    def _answered(self, exchange: Exchange, shown: bool) -> None:
        line = exchange.line
        result = self._judged(exchange)
        is_asked_again = exchange.api in ASKED_AGAIN and not line["errors"]
        for _ in range(AGAIN_TIMES):
            if not (is_asked_again and has_errors(result.differences)) and not is_being_ended(result.differences):
                break
            time.sleep(AGAIN_PAUSE_SECONDS)
            self._connection(exchange).send(self._request(exchange))
            result = self._judged(exchange)
        self._wait_for_expression(exchange)
        setup = line["case"].startswith("setup")
        compared = exchange.version not in self.newer.get(line["key"], range(0))
        if shown and (has_errors(result.differences) if setup else compared):
            self.report.results.append(result)
            self.report.rules_used.update(reason for _, reason in result.accepted)
        else:
            self.report.sent_only += 1

    def _wait_for_expression(self, exchange: Exchange) -> None:
        """Which topics match the expression of a member is found out behind the answer, in an epoch of its own. The
        recorded broker had done so before the next request.
        """
        line = exchange.line
        fields = line.get("request_fields", {})
        if exchange.api != "ConsumerGroupHeartbeat" or line["errors"] or not fields.get("SubscribedTopicRegex"):
            return
        from barnabas.protocol.messages import ConsumerGroupDescribeRequest

        for _ in range(AGAIN_TIMES):
            (group,) = self._ask(69, 0, ConsumerGroupDescribeRequest(group_ids=[fields["GroupId"]])).groups
            (member,) = [each for each in group.members if each.member_id == fields["MemberId"]]
            if member.target_assignment.topic_partitions:
                return
            time.sleep(AGAIN_PAUSE_SECONDS)

    def _judged(self, exchange: Exchange) -> Result:
        """Read the answer; which of its differences are accepted, and which are not."""
        result = Result(exchange, [], [])
        for difference in self._compare(exchange, self._connection(exchange).receive()):
            reason = self.rules.reason_to_accept(self.release, exchange, difference)
            if reason is None:
                result.differences.append(difference)
            else:
                result.accepted.append((difference, reason))
        return result

    def _compare(self, exchange: Exchange, answer: bytes | str) -> list[Difference]:
        line = exchange.line
        if isinstance(answer, str):
            return [] if line.get("closed") and answer == "closed" else [Difference("", "an answer", answer)]
        if line.get("closed"):
            return [Difference("", "closed", f"{len(answer)} bytes")]
        version = line.get("response_version", exchange.version)
        correlation, kafka = frames.decode_response(line["key"], version, memoryview(bytes.fromhex(line["response"])))
        try:
            correlation_of_ours, ours = frames.decode_response(line["key"], version, memoryview(answer))
        except ProtocolError as error:
            return [Difference("", "a response that can be read", f"{error}: {answer.hex()}")]
        if correlation_of_ours != correlation:
            return [Difference("", f"correlation id {correlation}", f"correlation id {correlation_of_ours}")]
        return compare(exchange.api, kafka, ours, self.chosen)


def _in_order(exchanges: Iterable[Exchange]) -> Iterator[tuple[str, Exchange]]:
    """("sent" | "answered", exchange) by the clock of the recording."""
    moments = []
    for exchange in exchanges:
        moments.append((exchange.line["sent"], "sent", exchange))
        if exchange.line["answered"] is not None:
            moments.append((exchange.line["answered"], "answered", exchange))
    moments.sort(key=lambda moment: moment[0])
    for _, kind, exchange in moments:
        yield kind, exchange


class OwnBroker:
    """A broker process on a temporary data directory, with the settings of the recording."""

    def __init__(self) -> None:
        self.data = tempfile.mkdtemp(prefix="barnabas-replay-")
        file = Path(self.data, "replay.properties")
        self.sasl_port = free_port()
        listeners = f"PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:{self.sasl_port}"
        settings = {**SETTINGS, "listeners": listeners}
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [sys.executable, "-m", "barnabas", "start", "--json"]
        command += ["--config", str(file), "--data", f"{self.data}/data"]
        self.log = open(f"{self.data}.log", "w")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.close()
            raise SystemExit(f"the broker did not start: {Path(self.log.name).read_text()[-2000:]}")
        host, _, port = json.loads(line)["bootstrap"].rpartition(":")
        self.host, self.port = host, int(port)

    def stop(self, keep_log: bool = False) -> list[str]:
        """Ask it to stop, wait, remove its files. Returns what its log has of errors."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.data, ignore_errors=True)
        errors = [line for line in Path(self.log.name).read_text().splitlines() if " ERROR " in line]
        if not keep_log:
            os.unlink(self.log.name)
        return errors


def selected(name: str, patterns: list[str]) -> bool:
    """Whether any pattern fits and none of those with a ! in front does."""
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    fits = [any(fnmatch.fnmatchcase(name, pattern) for pattern in some) for some in (wanted, unwanted)]
    return fits[0] and not fits[1]


def replay(
    release: str,
    *,
    api: str = "*",
    connection: str = "*",
    bootstrap: str | None = None,
    keep_log: bool = False,
) -> Report:
    """Replay a release; `connection` (a pattern) selects what is sent, `api` what of it is compared."""
    if bootstrap is None:
        broker = OwnBroker()
        host, port, sasl_port = broker.host, broker.port, broker.sasl_port
    else:
        broker, sasl_port = None, None
        host, port = bootstrap.rpartition(":")[0], int(bootstrap.rpartition(":")[2])
    errors = []
    try:
        report = Replay(release, host, port, Rules(), sasl_port).run(
            lambda exchange: selected(exchange.line["connection"], connection.split(",")),
            lambda exchange: fnmatch.fnmatchcase(exchange.api, api),
        )
    finally:
        if broker is not None:
            errors = broker.stop(keep_log)
    report.broker_errors = errors
    return report


def describe(result: Result) -> str:
    """A difference for a person: the exchange, then path, Kafka's value, ours."""
    lines = [result.exchange.name]
    for difference in result.differences[:12]:
        lines += [
            f"    {difference.path}",
            f"      kafka {_short(difference.kafka)}",
            f"      ours  {_short(difference.ours)}",
        ]
    if len(result.differences) > 12:
        lines.append(f"    … and {len(result.differences) - 12} more")
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"


def table(report: Report) -> str:
    """API, version, exchanges, equal, accepted, different."""
    rows: defaultdict[tuple[int, str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for result in report.results:
        row = rows[result.exchange.line["key"], result.exchange.api, result.exchange.version]
        row[0] += 1
        row[3 if result.differences else 2 if result.accepted else 1] += 1
    lines = [f"{'API':<26}{'version':>8}{'exchanges':>11}{'equal':>8}{'accepted':>10}{'different':>11}"]
    for (_, api, version), row in sorted(rows.items()):
        lines.append(f"{api:<26}{version:>8}{row[0]:>11}{row[1]:>8}{row[2]:>10}{row[3]:>11}")
    total = [sum(column) for column in zip(*rows.values(), strict=True)] or [0, 0, 0, 0]
    lines.append(f"{'all':<26}{'':>8}{total[0]:>11}{total[1]:>8}{total[2]:>10}{total[3]:>11}")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=RELEASES, help="only this one")
    parser.add_argument("--api", default="*", metavar="NAME", help="compare only this API (everything is still sent)")
    parser.add_argument(
        "--connection", default="*", metavar="PATTERNS", help="send only these, e.g. 'groups-*,fetch-13'"
    )
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs already, empty, with node id 1")
    parser.add_argument("--show", type=int, default=40, metavar="N", help="differences to print (default 40)")
    parser.add_argument("--keep-log", action="store_true", help="leave the broker's log in the temporary folder")
    options = parser.parse_args()
    failed = False
    used: set[str] = set()
    for release in [options.release] if options.release else RELEASES:
        report = replay(
            release,
            api=options.api,
            connection=options.connection,
            bootstrap=options.bootstrap,
            keep_log=options.keep_log,
        )
        print(f"== Kafka {release}\n{table(report)}\n")
        print(f"sent for their effect only: {report.sent_only}")
        for title, counts in (("left out", report.left_out), ("accepted differences", report.rules_used)):
            print(f"{title}:")
            for reason, count in counts.most_common():
                print(f"  {count:>5}  {reason}")
        for result in report.different[: options.show]:
            print(f"\n{describe(result)}")
        for line in report.broker_errors:
            print(f"the broker's log: {line}")
        failed = failed or bool(report.different or report.broker_errors)
        used.update(report.rules_used)
    if not options.release and options.api == options.connection == "*":
        for reason in sorted({str(rule["reason"]) for rule in Rules().accepted} - used):
            print(f"nothing needs this any more, take it out of differences.toml: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
