"""Brokers that tests command, in two ways: by `barnabas.testing`, and by plain HTTP as any language would."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from barnabas.testing import Barnabas, CommandError, Fault, Topic

Fields = dict[str, Any]


class RefusedError(Exception):
    """A plain HTTP call was refused."""


REFUSED = (CommandError, RefusedError)


class TestFault(Protocol):
    """A fault that holds."""

    __test__ = False

    @property
    def fired(self) -> int:
        """How often it fired."""

    def wait_fired(self, times: int) -> None:
        """Wait until it has fired so often."""


class Brokers(Protocol):
    """What the tests command. A command that is refused raises one of `REFUSED`."""

    ports: dict[int, int]

    def fault(self, effect: str, node_id: int | None = None, **fields: Any) -> AbstractContextManager[TestFault]:
        """A fault on one broker, or on all."""

    def requests(self, client: str) -> list[Fields]:
        """What this client has asked."""

    def wait(self, kind: str, name: str, timeout_ms: int = 20_000, **query: Any) -> Fields:
        """Wait for a group, a topic or a transaction."""

    def wait_requests(self, client: str, timeout_ms: int = 20_000, **query: Any) -> list[Fields]:
        """Wait for requests."""

    def advance(self, passed_ms: int, sessions: str = "keep") -> int:
        """Let time pass; returns what the clock shows."""

    def stand(self, stands: bool) -> None:
        """Let time stand still, or go on."""

    def expire_member(self, group: str, member: str) -> str:
        """Take a member out; returns its id."""


class ByPython:
    """By `barnabas.testing`."""

    def __init__(self, kafka: Barnabas) -> None:
        self.kafka = kafka
        self.ports = {node: int(each.host_and_port.rpartition(":")[2]) for node, each in kafka.processes.items()}

    def fault(self, effect: str, node_id: int | None = None, **fields: Any) -> Fault:
        """By the method of this name."""
        if effect == "isolated":
            return self.kafka.isolate(node_id or 0)
        own: dict[str, Callable[..., Fault]] = {"error": self.kafka.fail}
        method = own.get(effect) or getattr(self.kafka, effect)
        return method(**fields, **({} if node_id is None else {"node_id": node_id}))

    def requests(self, client: str) -> list[Fields]:
        """What this client has asked."""
        return self.kafka.requests(client=client)

    def wait(self, kind: str, name: str, timeout_ms: int = 20_000, **query: Any) -> Fields:
        """By the method of group, topic or transaction."""
        if kind == "groups":
            return self.kafka.group(name, unique=False).wait(**query, timeout=timeout_ms / 1000)
        if kind == "topics":
            return Topic(self.kafka, name).wait(**query, timeout=timeout_ms / 1000)
        return {"state": self.kafka.wait_transaction(name, **query, timeout=timeout_ms / 1000)}

    def wait_requests(self, client: str, timeout_ms: int = 20_000, **query: Any) -> list[Fields]:
        """Wait for requests."""
        if "since" in query:
            query["since"] = {0: query["since"]}
        return self.kafka.wait_requests(client=client, timeout=timeout_ms / 1000, **query)

    def advance(self, passed_ms: int, sessions: str = "keep") -> int:
        """Let time pass."""
        self.kafka.clock.advance(ms=passed_ms, sessions=sessions)
        return self.kafka.clock.now_ms

    def stand(self, stands: bool) -> None:
        """Let time stand still, or go on."""
        clock = self.kafka.clock
        clock.freeze() if stands else clock.resume()

    def expire_member(self, group: str, member: str) -> str:
        """Take a member out."""
        return self.kafka.group(group, unique=False).expire_member(member)


class FaultOverHttp:
    """A rule on each of some brokers."""

    def __init__(self, brokers: "OverHttp", rules: dict[int, int]) -> None:
        self._brokers = brokers
        self._rules = rules

    @property
    def fired(self) -> int:
        """How often it fired."""
        found = 0
        for node_id, number in self._rules.items():
            rows = self._brokers.ask("GET", "rules", node_id=node_id)["rules"]
            found += next(row["fired"] for row in rows if row["id"] == number)
        return found

    def wait_fired(self, times: int) -> None:
        """As a long poll, where there is one broker."""
        ((node_id, number),) = self._rules.items()
        self._brokers.ask("GET", f"rules/{number}/wait", {"fired": times, "timeout_ms": 20_000}, node_id=node_id)


class OverHttp:
    """By plain HTTP calls to brokers that `barnabas start` has started."""

    def __init__(self, ready: Fields) -> None:
        self.ports = dict(enumerate(int(each.rpartition(":")[2]) for each in ready["bootstrap"].split(",")))
        http = ready["http"] if isinstance(ready["http"], list) else [ready["http"]]
        self._addresses = dict(enumerate(http))

    def ask(self, method: str, path: str, query: Fields | None = None, body: Any = None, node_id: int = 0) -> Any:
        """One call."""
        target = f"http://{self._addresses[node_id]}/v1/control/{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(target, content, headers, method=method)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            raise RefusedError(json.load(refused)["error"]["message"]) from None

    @contextmanager
    def fault(self, effect: str, node_id: int | None = None, **fields: Any) -> Iterator[FaultOverHttp]:
        """One call for each broker at the beginning, and one at the end."""
        nodes = list(self.ports) if node_id is None else [node_id]
        rules = {
            each: self.ask("POST", "rules", body={"effect": effect, **fields}, node_id=each)["id"] for each in nodes
        }
        try:
            yield FaultOverHttp(self, rules)
        finally:
            for each, number in rules.items():
                self.ask("DELETE", f"rules/{number}", node_id=each)

    def requests(self, client: str) -> list[Fields]:
        """What this client has asked."""
        return [
            row
            for node in self.ports
            for row in self.ask("GET", "requests", {"client": client}, node_id=node)["requests"]
        ]

    def wait(self, kind: str, name: str, timeout_ms: int = 20_000, **query: Any) -> Fields:
        """A long poll. urllib follows the redirection to the coordinator of a group."""
        said = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
        found: Fields = self.ask("GET", f"{kind}/{quote(name, safe='')}/wait", {**said, "timeout_ms": timeout_ms})
        return found

    def wait_requests(self, client: str, timeout_ms: int = 20_000, **query: Any) -> list[Fields]:
        """A long poll of the first broker."""
        return list(self.ask("GET", "requests/wait", {"client": client, "timeout_ms": timeout_ms, **query})["requests"])

    def advance(self, passed_ms: int, sessions: str = "keep") -> int:
        """The same to all brokers."""
        body = {"advance_ms": passed_ms, "sessions": sessions}
        return min(int(self.ask("POST", "clock", body=body, node_id=node)["now_ms"]) for node in self.ports)

    def stand(self, stands: bool) -> None:
        """The same to all brokers."""
        for node in self.ports:
            self.ask("POST", "clock", body={"stands": stands}, node_id=node)

    def expire_member(self, group: str, member: str) -> str:
        """urllib does not follow the redirection of a POST: ask each broker."""
        path = f"groups/{quote(group, safe='')}/members/{quote(member, safe='')}/expire"
        refused: RefusedError | None = None
        for node in self.ports:
            try:
                return str(self.ask("POST", path, node_id=node)["member_id"])
            except RefusedError as error:
                refused = error
        assert refused is not None
        raise refused


@contextmanager
def started(way: str, brokers: int) -> Iterator[Brokers]:
    """Brokers that are commanded in this way."""
    if way == "python":
        with Barnabas(brokers) as kafka:
            yield ByPython(kafka)
        return
    command = [sys.executable, "-m", "barnabas", "start", "--profile", "ci", "--port", "0", "--json"]
    command += ["--brokers", str(brokers)] if brokers > 1 else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield OverHttp(json.loads(process.stdout.readline()))
        finally:
            process.terminate()
            process.wait(200)
