"""Who may do what, and how much, under a seed: two brokers, users with passwords, nobody, rules that change.

An administrator adds and removes access rules and quotas all the time, each change at one of the brokers. Brokers are
killed, stopped, paused and cut from the tree meanwhile. Others ask whatever there is to ask. At any time:

- nobody is allowed what the rules refuse, and nobody is refused what they allow, whichever of the last changes the
  broker may have heard of (access_model.py), and within a second after it is back it has heard of all;
- nobody is shown the name of a topic or a group that it may not describe, and what is refused has changed nothing;
- what must hold of quotas (access_quotas.py).
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

from simulator.access_clients import (
    ANONYMOUS,
    LOGIN_PORT,
    OPEN_PORT,
    PASSWORDS,
    REFUSALS,
    Question,
    connect,
    fetch,
    of_fetch,
    questions,
    try_without_a_login,
)
from simulator.access_model import (
    ALL,
    ALLOW,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DENY,
    DESCRIBE,
    GROUP,
    LITERAL,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    Answered,
    Asker,
    History,
    Right,
    Rule,
    Rules,
)
from simulator.access_quotas import BUSY, OF_CAREFUL, RATES, Customer, Usage, quota_of
from simulator.clients.connection import Connection, LostError
from simulator.disk import SimDisk
from simulator.host import Host
from simulator.simulation import Simulation, Verdict
from simulator.tree_service import TREE, TreeService
from simulator.violation import Violation

TOPICS = ("alpha-one", "alpha-two", "beta")
GROUPS = ("alpha-readers", "beta-readers")
NODES = (0, 1)
ADMIN_PATIENCE_MS = 60_000.0
MACHINES = ("client0", "client1")
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
SETTINGS = {
    "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT,OPEN:PLAINTEXT",
    "inter.broker.listener.name": "LOGIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": (
        f'{PLAIN} required username="broker" password="{PASSWORDS["broker"]}" {USERS};'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:broker",
    "zookeeper.connect": "tree:2181",
    "http.listeners": "none",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "2",
    "default.replication.factor": "2",
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": "3000",
}
ALWAYS = frozenset(
    Rule(TOPIC, BUSY, LITERAL, f"User:{user}", "*", operation, ALLOW)
    for user in ("greedy", "careful", "free")
    for operation in (READ, WRITE)
)
LET_IN, KEPT_OUT = "nobody is allowed what the rules refuse", "nobody is refused what the rules allow"
SHOWN, CHANGED = "nobody is shown what the rules refuse", "what is refused has changed nothing"


class AccessWorld(Simulation):
    """One run."""

    def __init__(self, seed: int, minutes: float = 1.0, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, minutes, trace)
        self.tree = TreeService(self.clock, self.network, session_timeout_ms=1_500.0, lingers=False)
        self.hosts = {f"broker{node}": self._make_host(node) for node in NODES}
        self.names = list(self.hosts)
        self.back_ms = dict.fromkeys(self.names, float("inf"))  # since when each has been there without a trouble
        self.rules: History[Rules] = History(ALWAYS)
        self.quota: History[float | None] = History(None)  # of the greedy user
        self.usage: dict[tuple[str, bool], Usage] = {}  # of the greedy user, by broker, and whether it reads
        self.ending = False
        self.allowed = self.refused = self.throttled = self.changes = 0
        self._values: set[bytes] = set()  # of records that were refused
        self._admin: Connection | None = None
        self._admin_at = self.names[0]

    def _make_host(self, node: int) -> Host:
        name = f"broker{node}"
        settings = SETTINGS | {
            "node.id": str(node),
            "listeners": f"LOGIN://{name}:{LOGIN_PORT},OPEN://{name}:{OPEN_PORT}",
        }
        disk = SimDisk(self.clock, random.Random(f"{self.seed} disk {node}"))
        return Host(f"{self.seed} {name}", self.clock, disk, self.network, self.tree, settings, name=name)

    def now_ms(self) -> float:
        """Of this world."""
        return self.clock.monotonic_ms()

    def summary(self) -> str:
        """The numbers of the run."""
        return (
            f"{self.changes} changes, {self.allowed} allowed, {self.refused} refused, {self.throttled} had to wait, "
            f"{sum(host.lives for host in self.hosts.values())} lives"
        )

    def prepare(self) -> None:
        """A network that is slow in most runs."""
        if self.rng.random() < 0.8:
            self.network.jitter = self.latency_ms

    def after_pass(self) -> None:
        """Look whether a handler has met a bug."""
        for host in self.hosts.values():
            if host.is_up and host.life is not None and host.life.broker.request_gate.handler_failures:
                self.fail(Violation("no handler fails", f"{host.name}: see the log"))

    def kill_all(self) -> None:
        """End the brokers."""
        for host in self.hosts.values():
            host.kill()

    # -- the administrator

    async def _as_admin(self, ask: Callable[[Connection], Awaitable[Any]]) -> tuple[Any, str]:
        """An answer that the administrator gets after all, and the broker that gave it."""
        until_ms = self.now_ms() + ADMIN_PATIENCE_MS
        while self.now_ms() < until_ms:
            try:
                if self._admin is None or self._admin.closed:
                    self._admin_at = self.rng.choice(self.names)
                    self._admin = await connect(self.clock, self.network, self._admin_at, "admin", "client0")
                answer = await ask(self._admin)
                if answer is not None:
                    return answer, self._admin_at
            except LostError:
                pass
            if self._admin is not None:
                self._admin.abort()
            await self.clock.sleep(self.rng.uniform(50, 300))
        raise Violation("the administrator is heard", f"nothing was done within {ADMIN_PATIENCE_MS:.0f} ms")

    async def _change(self, key: ApiKey, version: int, request: Any, error_of: Callable[[Any], int]) -> str:
        """Have a change made by any broker; returns which one has said that it is made."""

        async def ask(connection: Connection) -> Any:
            answer = await connection.ask(key, version, request)
            error = error_of(answer)
            if error in REFUSALS:
                raise Violation(KEPT_OUT, f"the administrator: {ErrorCode(error).name}")
            return None if error else answer

        self.changes += 1
        return (await self._as_admin(ask))[1]

    async def _add(self, rule: Rule) -> None:
        make = messages.CreateAclsRequest
        row = make.AclCreation(
            resource_type=rule.type,
            resource_name=rule.name,
            resource_pattern_type=rule.pattern,
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        self.note(f"add {rule}")
        self.rules.change(self.rules.newest | {rule}, self.now_ms())
        request = make(creations=[row])
        broker = await self._change(ApiKey.CREATE_ACLS, 2, request, lambda answer: int(answer.results[0].error_code))
        self.rules.changed(broker, self.now_ms())

    async def _remove(self, rule: Rule) -> None:
        make = messages.DeleteAclsRequest
        row = make.DeleteAclsFilter(
            resource_type_filter=rule.type,
            resource_name_filter=rule.name,
            pattern_type_filter=rule.pattern,
            principal_filter=rule.principal,
            host_filter=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        self.note(f"remove {rule}")
        self.rules.change(self.rules.newest - {rule}, self.now_ms())
        request = make(filters=[row])
        # Only a broker that has heard of the rule can remove it.
        wait_ms = max(0.0, max(self.back_ms.values()) + 1_000 - self.now_ms())
        await self.clock.sleep(min(wait_ms, 1_000.0))
        while True:
            broker = await self._change(
                ApiKey.DELETE_ACLS, 2, request, lambda answer: int(answer.filter_results[0].error_code)
            )
            if rule not in self._rules_of(broker):
                break
        self.rules.changed(broker, self.now_ms())

    def _rules_of(self, broker: str) -> Iterator[Rule]:
        life = self.hosts[broker].life
        authorizer = None if life is None else life.broker.authorizer
        for acl in () if authorizer is None else authorizer.table:
            resource = acl.resource
            yield Rule(resource.type, resource.name, resource.pattern, *acl[1:])

    def _some_rule(self) -> Rule:
        rng = self.rng
        principal = rng.choice(("User:alice", "User:alice", "User:bob", "User:bob", ANONYMOUS, "User:*"))
        host = rng.choice(("*", "*", *MACHINES))
        permission = ALLOW if rng.random() < 0.75 else DENY
        kind = rng.choice((TOPIC, TOPIC, TOPIC, GROUP, CLUSTER))
        if kind == CLUSTER:
            operation = rng.choice((CREATE, DESCRIBE, CLUSTER_ACTION, ALL))
            return Rule(CLUSTER, CLUSTER_NAME, LITERAL, principal, host, operation, permission)
        name, pattern = rng.choice(TOPICS if kind == TOPIC else GROUPS), LITERAL
        if rng.random() < 0.35:
            name, pattern = rng.choice((("alpha", PREFIXED), ("be", PREFIXED), ("*", LITERAL)))
        elif kind == TOPIC and rng.random() < 0.3:
            name += "-scratch"
        of_kind = (
            (READ, WRITE, DESCRIBE, CREATE, DELETE, ALTER_CONFIGS, ALL) if kind == TOPIC else (READ, DESCRIBE, ALL)
        )
        return Rule(kind, name, pattern, principal, host, rng.choice(of_kind), permission)

    async def _administer(self) -> None:
        while not self.ending:
            await self.clock.sleep(self.rng.uniform(100, 1_200))
            luck = self.rng.random()
            mine = sorted(self.rules.newest - ALWAYS)
            if luck < 0.08:
                await self._set_quota(self.rng.choice([rate for rate in RATES if rate != self.quota.newest]))
            elif mine and luck < 0.08 + 0.04 * len(mine):
                await self._remove(self.rng.choice(mine))
            else:
                rule = self._some_rule()
                if rule not in self.rules.newest:
                    await self._add(rule)

    async def _set_quota(self, rate: float | None) -> None:
        self.note(f"the quota is {rate}")
        self.quota.change(rate, self.now_ms())
        request = quota_of("greedy", rate)
        broker = await self._change(
            ApiKey.ALTER_CLIENT_QUOTAS, 1, request, lambda answer: int(answer.entries[0].error_code)
        )
        self.quota.changed(broker, self.now_ms())

    # -- clients

    async def _ask_all_the_time(self, number: int) -> None:
        rng = random.Random(f"{self.seed} client {number}")
        while not self.ending:
            user, machine, broker = rng.choice(("alice", "bob", "")), rng.choice(MACHINES), rng.choice(self.names)
            try:
                if rng.random() < 0.05:
                    opened = await Connection.open(self.clock, self.network, "guest", (broker, LOGIN_PORT), machine)
                    await try_without_a_login(opened, user or "alice", guesses=rng.random() < 0.7)
                connection = await connect(self.clock, self.network, broker, user, machine)
                for turn in range(rng.randint(3, 30)):
                    asker = Asker(f"User:{user}" if user else ANONYMOUS, machine)
                    value = f"{number} {turn} {self.now_ms()}".encode()
                    if rng.random() < 0.1:
                        await self._list(connection, broker, asker)
                    else:
                        asked = rng.choice(questions(rng.choice(TOPICS), rng.choice(GROUPS), value))
                        await self._ask(connection, broker, asker, asked, value)
                    await self.clock.sleep(rng.uniform(5, 200))
                connection.abort()
            except LostError:
                pass
            await self.clock.sleep(rng.uniform(10, 300))

    async def _ask(self, connection: Connection, broker: str, asker: Asker, asked: Question, value: bytes) -> None:
        sent_ms = self.now_ms()
        answer = await connection.ask(asked.key, asked.version, asked.request)
        answered = Answered(broker, sent_ms, self.now_ms(), self.back_ms[broker])
        error = asked.error_of(answer)
        self.answers += 1
        if error in REFUSALS and asked.what == "produce":
            self._values.add(value)
        self.judge(asker, answered, asked, error)

    def judge(self, asker: Asker, answered: Answered, asked: Question, error: int) -> None:
        """Whether it was right to refuse this, or to allow it."""
        detail = f"{asker.principal} at {asker.host} asks {answered.broker} to {asked.what}: {ErrorCode(error).name}"
        if error in REFUSALS:
            self.refused += 1
            if self.rules.always(answered, lambda rules: _may(asker, asked, rules)):
                raise Violation(KEPT_OUT, detail)
        else:
            self.allowed += 1
            if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and asked.shows_absence is not None:
                asked = asked._replace(any_of=(*asked.any_of, asked.shows_absence))
            if self.rules.always(answered, lambda rules: not _may(asker, asked, rules)):
                raise Violation(LET_IN, detail)

    async def _list(self, connection: Connection, broker: str, asker: Asker) -> None:
        sent_ms = self.now_ms()
        topics = await connection.ask(ApiKey.METADATA, 8, messages.MetadataRequest(topics=None))
        groups = await connection.ask(ApiKey.LIST_GROUPS, 2, messages.ListGroupsRequest())
        answered = Answered(broker, sent_ms, self.now_ms(), self.back_ms[broker])
        of_cluster = Right(DESCRIBE, CLUSTER, CLUSTER_NAME)
        shown = [Right(DESCRIBE, TOPIC, topic.name) for topic in topics.topics]
        shown += [Right(DESCRIBE, GROUP, group.group_id) for group in groups.groups]
        for right in shown:
            ways = (right, of_cluster) if right.type == GROUP else (right,)
            if self.rules.always(answered, lambda rules: not any(asker.may(way, rules) for way in ways)):  # noqa: B023
                raise Violation(SHOWN, f"{asker} is shown {right.name} by {broker}")

    # -- troubles

    async def _trouble(self) -> None:
        rng = random.Random(f"{self.seed} troubles")
        while not self.ending:
            await self.clock.sleep(rng.uniform(2_000, 12_000))
            if self.ending:
                return
            name = rng.choice(self.names)
            host = self.hosts[name]
            kind = rng.choice(("kill", "stop", "pause", "cut"))
            self.note(f"{kind} {name}")
            self.back_ms[name] = float("inf")
            lasts_ms = rng.uniform(100, 5_000)
            if kind in ("kill", "stop"):
                if kind == "kill":
                    host.kill()
                else:
                    await host.stop()
                await self.clock.sleep(lasts_ms)
                await host.start()
            elif kind == "pause":
                host.pause()
                await self.clock.sleep(lasts_ms)
                host.resume()
            else:
                self.network.block(name, TREE)
                self.network.block(TREE, name)
                await self.clock.sleep(lasts_ms)
                self.network.unblock(name, TREE)
                self.network.unblock(TREE, name)
            await self._is_back(name)

    async def _is_back(self, name: str) -> None:
        """Wait until the broker is registered in a session that will not end soon."""
        await self.clock.sleep(self.tree.session_timeout_ms if self.hosts[name].lives else 0.0)
        while True:
            life = self.hosts[name].life
            if life is not None and life.serving and life.broker.own_registration.is_registered():
                break
            await self.clock.sleep(20)
        self.back_ms[name] = self.now_ms()
        self.note(f"{name} is back")

    # -- the run

    async def story(self) -> None:
        """Begin, let all do what they do, and look at what is there in the end."""
        for host in self.hosts.values():
            await host.start()
        for name in self.names:
            self.back_ms[name] = self.now_ms()
        await self._set_up()
        self.spawn(self._administer())
        self.spawn(self._trouble())
        for number in range(4):
            self.spawn(self._ask_all_the_time(number))
        customers = (("greedy", 0), ("greedy", 1), ("careful", 0), ("careful", 1), ("free", 0))
        for user, number in customers:
            self.spawn(Customer(self, user, number).run())
        self.begin_more()
        await self.clock.sleep(self.minutes * 60_000)
        self.ending = True
        await self.clock.sleep(45_000)
        await self._look_at_records()
        self.finish()

    def begin_more(self) -> None:
        """Others that do what they do."""

    async def _set_up(self) -> None:
        make = messages.CreateTopicsRequest
        topics = [make.CreatableTopic(name=name, num_partitions=1, replication_factor=2) for name in (*TOPICS, BUSY)]
        await self._change(
            *(ApiKey.CREATE_TOPICS, 5, make(topics=topics, timeout_ms=20_000)),
            lambda answer: any(row.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS) for row in answer.topics),
        )
        for group in GROUPS:
            find = messages.FindCoordinatorRequest(key=group, key_type=0)
            await self._change(ApiKey.FIND_COORDINATOR, 2, find, lambda answer: int(answer.error_code))
        history, self.rules = self.rules, History(frozenset())
        for rule in sorted(ALWAYS):
            await self._add(rule)
        self.rules = history
        await self._change(
            *(ApiKey.ALTER_CLIENT_QUOTAS, 1, quota_of("careful", OF_CAREFUL)),
            lambda answer: int(answer.entries[0].error_code),
        )
        await self.clock.sleep(2_000)

    async def _look_at_records(self) -> None:
        for topic in TOPICS:
            offset = 0
            while True:

                async def ask(connection: Connection, topic: str = topic, offset: int = offset) -> Any:
                    answer = await connection.ask(ApiKey.FETCH, 11, fetch(topic, offset, max_bytes=1_000_000))
                    if of_fetch(answer):
                        connection.abort()  # another broker leads
                        return None
                    return answer

                answer, _ = await self._as_admin(ask)
                row = answer.responses[0].partitions[0]
                for header, batch in record_batch.batches(row.records or b""):
                    offset = header.last_offset + 1
                    for record in record_batch.records(batch):
                        if record.value in self._values:
                            raise Violation(CHANGED, f"{topic} has a record that was refused: {record.value!r}")
                if offset >= row.high_watermark:
                    break


def _may(asker: Asker, asked: Question, rules: Rules) -> bool:
    """Whether these rules allow what is asked for."""
    is_enough = not asked.any_of or any(asker.may(right, rules) for right in asked.any_of)
    return is_enough and all(asker.may(right, rules) for right in asked.rights)


def run(seed: int, minutes: float = 1.0, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run the world of a seed."""
    return AccessWorld(seed, minutes, trace).run()
