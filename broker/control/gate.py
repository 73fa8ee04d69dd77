"""The request gate of a broker that tests command: faults by name, and a record of what clients ask and get.

Requests of other brokers, and those of this broker to itself, pass as they do elsewhere: a fault is what a client sees.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.broker.control.facts import detached, facts_of
from barnabas.broker.control.recorder import Exchange, Recorder
from barnabas.broker.control.rules import Effect, Rule, Rules, When
from barnabas.broker.refusals import Refusals
from barnabas.broker.requests import CLOSE, NOT_YET, Api, RequestContext, RequestGate
from barnabas.protocol.message import Message
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.runtime.lives import Lives


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
        if isinstance(before, ControlledGate):
            self.rules, self.recorder = before.rules, before.recorder

    def ask(self, request: Message, version: int) -> Pending[Any]:
        """The answer to a request that this broker sends to itself."""
        before, self._asks_itself = self._asks_itself, True
        try:
            return super().ask(request, version)
        finally:
            self._asks_itself = before

    def handle(self, api: Api, request: Any, context: RequestContext) -> Any:
        """What the handler returns, or what a rule makes of it."""
        if self._asks_itself or api.is_of_broker(request):
            return super().handle(api, request, context)
        topic_name = self._services.metadata_cache.topic_name
        facts = facts_of(request, context.api_version, context.client_id, topic_name)
        exchange = self.recorder.begin(self._clock.now_ms(), context, facts, request)
        active = self.rules.fault_of(facts)
        if active is None:
            return self._noted(exchange, self._handled(api, request, context))
        exchange.rule = active.number
        return self._with_fault(active.rule, exchange, api, request, context)

    def _handled(self, api: Api, request: Any, context: RequestContext) -> Any:
        """The reply: an answer, a Pending of it, None or CLOSE."""
        reply = super().handle(api, request, context)
        return self.outcome(api, context, request, reply) if isinstance(reply, NOT_YET) else reply

    def _noted(self, exchange: Exchange, reply: Any) -> Any:
        """The same reply, which is recorded when it is there."""

        def note(answer: Any) -> Any:
            fate = "cut" if answer is CLOSE else "answered" if answer is not None else "no answer"
            self.recorder.end(exchange, fate, self._clock.now_ms(), answer)
            return answer

        return reply.map(note, type(reply)) if isinstance(reply, Pending) else note(reply)

    def _with_fault(self, rule: Rule, exchange: Exchange, api: Api, request: Any, context: RequestContext) -> Any:
        effect, is_after = rule.effect, rule.when is When.AFTER
        if effect is Effect.DROP_REQUEST:
            return self._no_answer(exchange)
        if effect is Effect.DELAY and not is_after:
            context.keep_frame()
            later = partial(self._handled, api, detached(request), context)
            return self._noted(exchange, self._later(rule.delay_ms, later))
        has_effect = is_after or effect in (Effect.DROP_ANSWER, Effect.THROTTLE)
        reply = self._handled(api, request, context) if has_effect else None

        def changed(answer: Any) -> Any:
            if effect is Effect.CUT:
                return CLOSE
            if effect is Effect.ERROR:
                failure = api.failure_response(request, rule.error)
                return CLOSE if failure is None else failure
            if effect is Effect.THROTTLE and hasattr(answer, "throttle_time_ms"):
                answer.throttle_time_ms = rule.delay_ms
            return answer

        if effect is Effect.DROP_ANSWER:
            if isinstance(reply, Pending):
                reply.then(lambda _: None)
            return self._no_answer(exchange)
        if effect is Effect.DELAY:
            return self._noted(exchange, self._later(rule.delay_ms, lambda: reply))
        return self._noted(exchange, reply.map(changed) if isinstance(reply, Pending) else changed(reply))

    def _no_answer(self, exchange: Exchange) -> Pending[Any]:
        """A reply that never comes; its client waits, until it gives up and closes the connection."""
        self.recorder.end(exchange, "no answer", self._clock.now_ms())
        never: Pending[Any] = Pending()
        never.on_cancel = lambda: None
        return never

    def _later(self, delay_ms: int, make: Callable[[], Any]) -> Pending[Any]:
        """The reply that `make` returns after a while, also if its client is gone by then."""
        pending: Pending[Any] = Pending()

        def go_on() -> None:
            reply = make()
            if isinstance(reply, Pending):
                reply.on_failure = pending.fail
                reply.then(pending.complete)
            else:
                pending.complete(reply)

        self._clock.call_later(delay_ms, go_on)
        return pending
