"""The answers of one connection that wait for replicas, and those that wait behind them.

A Produce is carried out when its records are in the leader's log; only its answer waits. So the Produces behind it are
handled, as long as all together have no more than `CARRIED_OUT_BYTES_MAX`, and the answers are sent in the order of the
requests. Otherwise each batch of a producer would be a round trip to the followers of its own.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from barnabas.broker.requests import TABLE, Api, RequestContext
from barnabas.runtime.pending import CarriedOut, Pending

CARRIED_OUT_BYTES_MAX = 128 * 1024  # of the requests of one connection

_NO_REPLY = object()


class _Answer:
    """One that waits."""

    __slots__ = ("api", "context", "pending", "reply", "request", "size")

    def __init__(self, api: Api, context: RequestContext, request: Any, size: int, reply: Any) -> None:
        self.api = api
        self.context = context
        self.request = request
        self.size = size  # of the request
        self.reply = reply
        self.pending: Pending[Any] | None = None  # what it waits for


class CarriedOutAnswers:
    """Those of one connection. It is empty most of the time."""

    __slots__ = ("size_bytes", "waiting")

    def __init__(self) -> None:
        self.size_bytes = 0  # of the requests that are carried out
        self.waiting: deque[_Answer] = deque()  # in the order of the requests

    def await_replicas(
        self,
        api: Api,
        context: RequestContext,
        request: Any,
        size: int,
        reply: CarriedOut[Any],
        failed: Callable[[Api, RequestContext, Any, BaseException], Any],
        completed: Callable[[], None],
    ) -> None:
        """Wait for the replicas; `failed` makes the answer of an exception. `completed` is called for either."""
        # The plain row: an answer in this queue is encoded at once, so it must not be long.
        answer = _Answer(TABLE[api.key], context, request, size, _NO_REPLY)
        self.waiting.append(answer)
        self.size_bytes += size
        answer.pending = reply

        def ended(reply: Any) -> None:
            answer.reply, answer.pending = reply, None
            completed()

        reply.on_failure = lambda error: ended(failed(api, context, request, error))
        reply.then(ended)

    def put_behind(self, api: Api, context: RequestContext, request: Any, reply: Any) -> None:
        """An answer that is there already, and is sent behind those that wait."""
        self.waiting.append(_Answer(api, context, request, 0, reply))

    def take_first(self) -> tuple[Api, RequestContext, Any, Any] | None:
        """Take the answer that may be sent now, with its request. None: the first is not there yet."""
        if not self.waiting or self.waiting[0].reply is _NO_REPLY:
            return None
        answer = self.waiting.popleft()
        self.size_bytes -= answer.size
        return answer.api, answer.context, answer.request, answer.reply

    def give_up(self) -> None:
        """The client is gone: its records stay, and nobody waits for the answers."""
        given_up, self.waiting = self.waiting, deque()
        self.size_bytes = 0
        for answer in given_up:
            if answer.pending is not None:
                answer.pending.cancel()
