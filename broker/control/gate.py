"""The request gate of a broker that tests command: faults by name, and a record of what clients ask and get.

Requests of other brokers, and those of this broker to itself, pass as they do elsewhere: a fault is what a client sees.
"""

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.broker.api.metadata import live_brokers
from barnabas.broker.control import numbers
from barnabas.broker.control.facts import NOTHING, Facts, detached, facts_of, facts_of_file
from barnabas.broker.control.numbers import Numbers
from barnabas.broker.control.parts import READS, TopicName, failure_of, merge, split, with_session
from barnabas.broker.control.recorder import Exchange, Recorder
from barnabas.broker.control.rules import OF_DISK, OF_NETWORK, OF_TREE, ActiveRule, Effect, Role, Rule, Rules, When
from barnabas.broker.control.stale_metadata import stale
from barnabas.broker.own_registration import until_answered
from barnabas.broker.refusals import Refusals
from barnabas.broker.requests import CLOSE, NOT_YET, Api, RequestContext, RequestGate
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message, Reference
from barnabas.protocol.messages import MetadataRequest
from barnabas.runtime.broken_machine import BreakableDisk, BreakableNetwork
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.runtime.lives import Lives

METADATA_VERSION = 12  # with topic ids


class ControlledGate(RequestGate):
    """Hands requests to the handlers, unless a rule says otherwise."""

    def __init__(self, clock: Clock, services: "Services", refusals: Refusals) -> None:
        super().__init__(clock, services, refusals)
        self.rules = Rules()
        self.recorder = Recorder()
        self.lives: Lives | None = None  # set by a process that can begin another life
        self._asks_itself = False

    def join(self, lives: "Lives") -> None:
        """Be the gate of one of these lives. Faults and the record of requests go on from the life before."""
        self.lives = lives
        before, lives.gate = lives.gate, self
        http = self._services.http
        http.newest = lambda: lives.gate._services.http
        if isinstance(before, ControlledGate):
            self.rules, self.recorder = before.rules, before.recorder
            http.connection_class = before._services.http.connection_class
        disk, network = self._services.env.disk, self._services.env.network
        if isinstance(disk, BreakableDisk):
            disk.fault, disk.is_full = self._disk_fault, self._is_disk_full
        if isinstance(network, BreakableNetwork):
            network.is_cut_off = partial(self._is_hit, OF_NETWORK)
        self._services.coordination.is_unreachable = partial(self._is_hit, OF_TREE)

    async def end_life(self, lives: "Lives") -> None:
        """This broker is about to end for another life. In a cluster, it decides nothing about others any more."""
        services = self._services
        if lives.has_others:
            await services.controller.stop()
        await lives.are_quiet(await numbers.known(services.coordination, services.metadata_cache))

    async def before_elections(self, lives: "Lives") -> None:
        """No broker of the cluster is controller yet, unless it has been here before."""
        services = self._services
        told = [Numbers(*each) for each in lives.take_numbers()]
        if told:
            go_on = partial(numbers.go_on_from, services.coordination, Numbers.of_all(told), services.node_id)
            await until_answered(self._clock, go_on)

    def add(self, rule: Rule) -> ActiveRule:
        active = self.rules.add(rule)
        if rule.effect is Effect.STALE_METADATA:

            def keep(answer: Any) -> None:
                active.metadata = answer

            self.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), METADATA_VERSION).then(keep)
        network = self._services.env.network
        if rule.effect is Effect.ISOLATED and isinstance(network, BreakableNetwork):
            network.cut()
        return active

    def _disk_fault(self, path: str) -> OSError | None:
        active = self.rules.machine_fault(OF_DISK, facts_of_file(path)) if self._is_machine_hit() else None
        if active is None:
            return None
        number = errno.ENOSPC if active.rule.effect is Effect.DISK_FULL else errno.EIO
        return OSError(number, f"{os.strerror(number)} (a test says so)", path)

    def _is_disk_full(self) -> bool:
        return self._is_machine_hit() and self.rules.is_disk_full()

    def _is_hit(self, effects: frozenset[Effect]) -> bool:
        """Whether the machine meets such a fault now."""
        return self._is_machine_hit() and self.rules.machine_fault(effects, NOTHING) is not None

    def _is_machine_hit(self) -> bool:
        """Not while a life begins, or ends for the next one: they would fail, and a snapshot would not be whole."""
        if not self.rules or not self._services.server.serving:
            return False
        return self.lives is None or not self.lives.is_ending

    def _has_role(self, role: Role, facts: Facts) -> bool:
        services = self._services
        if role is Role.CONTROLLER:
            return services.controller.active
        if role is Role.COORDINATOR:
            groups, transactions = services.group_coordinator, services.transactions
            return any(not isinstance(groups.shard_of(name), ErrorCode) for name in facts.groups) or any(
                not isinstance(transactions.coordinator.shard_of(name), ErrorCode) for name in facts.transactional_ids
            )
        return any(
            partition.is_leader and (key in facts.partitions or (not facts.partitions and key[0] in facts.topics))
            for key, partition in services.replica_manager.partitions.items()
        )

    def ask(self, request: Message, version: int) -> Pending[Any]:
        before, self._asks_itself = self._asks_itself, True
        try:
            return super().ask(request, version)
        finally:
            self._asks_itself = before

    def handle(self, api: Api, request: Any, context: RequestContext) -> Any:
        """What the handler returns, or what a rule makes of it."""
        if self._asks_itself:
            return super().handle(api, request, context)
        if api.is_of_broker(request):
            return CLOSE if self._is_hit(OF_NETWORK) else super().handle(api, request, context)
        topic_name = self._services.metadata_cache.topic_name
        named = self._named(request) if self.rules else request
        facts = facts_of(named, context.api_version, context.client_id, topic_name)
        exchange = self.recorder.begin(self._clock.now_ms(), context, facts, request)
        active = self.rules.fault_of(facts, self._has_role) if self.rules else None
        if active is None:
            return self._noted(exchange, self._handled(api, request, context))
        exchange.rule = active.number
        return self._with_fault(active, exchange, api, request, named, context)

    def _named(self, request: Any) -> Any:
        """The request with all that it is about: a Fetch in a session names only what has changed."""
        if request.API_KEY != ApiKey.FETCH or not request.session_id or request.session_epoch <= 0:
            return request
        return with_session(request, self._services.fetch_sessions.of(request.session_id))

    def _handled(self, api: Api, request: Any, context: RequestContext) -> Any:
        """The reply: an answer, a Pending of it, None or CLOSE."""
        reply = super().handle(api, request, context)
        return self.outcome(api, context, request, reply) if isinstance(reply, NOT_YET) else reply

    def _noted(self, exchange: Exchange, reply: Any) -> Any:
        """The same reply, which is recorded when it is there; its frame, so that it is encoded once."""

        def note(answer: Any) -> Any:
            fate = "cut" if answer is CLOSE else "answered" if answer is not None else "no answer"
            frame = self.recorder.end(exchange, fate, self._clock.now_ms(), answer)
            has_quotas = self._services.server.throttles is not None  # they put a number into the answer
            return answer if frame is None or has_quotas else frames.EncodedFrame(frame)

        return reply.map(note, type(reply)) if isinstance(reply, Pending) else note(reply)

    def _with_fault(
        self, active: ActiveRule, exchange: Exchange, api: Api, request: Any, named: Any, context: RequestContext
    ) -> Any:
        rule = active.rule
        effect, is_after = rule.effect, rule.when is When.AFTER
        if effect is Effect.DROP_REQUEST:
            return self._no_answer(exchange)
        if effect is Effect.DELAY and not is_after:
            context.keep_frame()
            later = partial(self._handled, api, detached(request), context)
            return self._noted(exchange, self._later(rule.delay_ms, later))
        if effect is Effect.STALE_METADATA and isinstance(request, MetadataRequest) and active.metadata is not None:
            return self._noted(exchange, stale(active.metadata, live_brokers(self._services, context), request))
        if effect is Effect.ERROR:
            names: dict[bytes, str | None] = {}  # also of topics that the request deletes
            known = self._services.metadata_cache.topic_name

            def topic_name(topic_id: bytes) -> str | None:
                return names.setdefault(bytes(topic_id), known(topic_id))

            parts = split(request, named, rule, topic_name)
            if parts is not None:
                return self._noted(exchange, self._partly_failed(active, api, named, parts, context, topic_name))
        has_effect = is_after or effect not in (Effect.ERROR, Effect.CUT)
        reply = self._handled(api, request, context) if has_effect else None

        def changed(answer: Any) -> Any:
            if effect is Effect.CUT:
                return CLOSE
            if effect is Effect.ERROR:
                failure = api.failure_response(named, rule.error)
                if api.key == ApiKey.FETCH:
                    failure = failure_of(named, rule.error, failure)
                return CLOSE if failure is None else failure
            if effect is Effect.THROTTLE and hasattr(answer, "throttle_time_ms"):
                answer.throttle_time_ms = rule.delay_ms
            return answer

        if effect is Effect.HALF_ANSWER:
            reply = self._noted(exchange, reply)
            half = partial(_half, api, context)
            return reply.map(half) if isinstance(reply, Pending) else half(reply)
        if effect is Effect.DROP_ANSWER:
            if isinstance(reply, Pending):
                reply.then(lambda _: None)
            return self._no_answer(exchange)
        if effect is Effect.DELAY:
            return self._noted(exchange, self._later(rule.delay_ms, lambda: reply))
        return self._noted(exchange, reply.map(changed) if isinstance(reply, Pending) else changed(reply))

    def _partly_failed(
        self,
        active: ActiveRule,
        api: Api,
        named: Any,
        parts: tuple[Any, Any],
        context: RequestContext,
        topic_name: TopicName,
    ) -> Any:
        """The reply where only some of the topics or partitions get the error. Another rule may be for other topics."""
        rule, (hit, handled) = active.rule, parts
        failure = failure_of(hit, rule.error, api.failure_response(hit, rule.error))
        left = named if api.key in READS or rule.when is When.AFTER else handled
        facts = facts_of(left, context.api_version, context.client_id, topic_name)
        further = self.rules.further_fault(facts, self._has_role, active)
        further_parts = None if further is None else split(handled, left, further.rule, topic_name)
        if further is not None and further_parts is not None:
            reply = self._partly_failed(further, api, left, further_parts, context, topic_name)
        elif further is not None:  # it is for all that is left
            error = further.rule.error
            whole = failure_of(left, error, api.failure_response(left, error))
            reply = self._handled(api, handled, context) if further.rule.when is When.AFTER else whole
            reply = reply.map(lambda _: whole) if isinstance(reply, Pending) else whole
        else:
            reply = self._handled(api, handled, context)

        def with_failure(answer: Any) -> Any:
            if not isinstance(answer, Message) or failure is None:
                return CLOSE  # of a Produce with acks=0: its client hears of an error so
            merge(answer, failure, topic_name)
            return answer

        return reply.map(with_failure, type(reply)) if isinstance(reply, Pending) else with_failure(reply)

    def _no_answer(self, exchange: Exchange) -> Pending[Any]:
        """A reply that never comes; its client waits, until it gives up and closes the connection."""
        self.recorder.end(exchange, "no answer", self._clock.now_ms())
        never: Pending[Any] = Pending()
        never.on_cancel = lambda: None
        return never

    def _later(self, delay_ms: int, make: Callable[[], Any]) -> Pending[Any]:
        """The reply that `make` returns after a while, also if its client is gone by then."""
        delay: Pending[None] = Pending()
        self._clock.call_later(delay_ms, lambda: delay.complete(None))
        return delay.and_then(lambda _: make())


def _half(api: Api, context: RequestContext, answer: Any) -> Any:
    """The first half of an answer, after which the connection is closed."""
    if isinstance(answer, Message):
        parts = frames.encode_response(api.key, context.api_version, context.correlation_id, answer)
    elif isinstance(answer, frames.EncodedResponse):
        parts = [answer.frame(context.correlation_id)]
    elif isinstance(answer, frames.EncodedFrame):
        parts = answer.parts
    else:
        return answer  # none is sent
    whole = b"".join(bytes(part) for part in parts if not isinstance(part, Reference))
    return frames.EncodedFrame([whole[: sum(map(len, parts)) // 2]], is_last=True)
