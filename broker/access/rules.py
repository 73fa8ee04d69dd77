"""The forms of access that many APIs share, and how refused parts get into an answer."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from operator import attrgetter
from typing import Any, TypeVar

from barnabas.broker.requests import AUTHORIZATION_ERRORS, CLOSE, Access, Asked, OneRight, Reply
from barnabas.cluster.security.acls import AclOperation, ResourceType
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message, Struct
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, chunks

CLUSTER, GROUP, TOPIC = ResourceType.CLUSTER, ResourceType.GROUP, ResourceType.TOPIC
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
ROWS_PER_PIECE = 50  # some hundredths of a millisecond each, if the log says that they are refused
NOT_ASKED = -(2**31)  # in the place of the operations that somebody may do
T = TypeVar("T")
NameOf = Callable[[Any], str]  # the name of what a row is about

# Kafka's words, where its answers have a message.
MESSAGES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


def everybody(asked: Asked) -> Reply:
    """For those that ask for no right."""
    return asked.handle()


def whole(operation: AclOperation, type: ResourceType, field: str | None = None) -> Access:
    """One right for the whole request: on the cluster, or on what a field of the request names."""

    def refuse(asked: Asked) -> Reply:
        answer = asked.refuse(AUTHORIZATION_ERRORS[type])
        if type is CLUSTER and isinstance(answer, Message):
            say(answer, MESSAGES[AUTHORIZATION_ERRORS[type]])
        return answer

    return OneRight(operation, type, field, refuse)


def each(
    operation: AclOperation,
    type: ResourceType,
    field: str,
    name_of: NameOf = attrgetter("name"),
    message: str | None = None,
) -> Access:
    """One right for each row of a field. `message`: what the refused rows of the answer say."""

    def access(asked: Asked) -> Reply:
        return divided(asked, field, lambda row: asked.may(operation, type, name_of(row)), type, message)

    return access


def itself(row: str) -> str:
    """The name of a row that is a name."""
    return row


def divided(
    asked: Asked, field: str, is_allowed: Callable[[Any], bool], type: ResourceType, message: str | None = None
) -> Reply:
    """Have the rows of a field handled that are allowed, and answer the others with the error of their type."""
    rows = getattr(asked.request, field) or ()
    if asked.context.is_long and asked.api.key != ApiKey.PRODUCE:  # whose records are in a frame that may be lent
        pieces = _divided_in_pieces(asked, field, rows, is_allowed, type, message)
        return asked.services.env.turns.run(pieces, to_the_end=True)
    allowed, refused = parted(rows, is_allowed)
    if not refused:
        return asked.handle()
    answer = asked.refuse(AUTHORIZATION_ERRORS[type], with_rows(asked.request, field, refused))
    if message is not None:
        say(answer, message)
    if not allowed:
        return answer
    return then(asked.handle(with_rows(asked.request, field, allowed)), lambda there: joined(there, answer))


def _divided_in_pieces(
    asked: Asked,
    field: str,
    rows: Sequence[Any],
    is_allowed: Callable[[Any], bool],
    type: ResourceType,
    message: str | None,
) -> Pieces[Any]:
    """The same for very many rows."""
    allowed: list[Any] = []
    answer: Any = None  # to those that are refused
    for some in chunks(rows, ROWS_PER_PIECE):
        yield
        fine, refused = parted(some, is_allowed)
        allowed += fine
        if refused:
            part = asked.refuse(AUTHORIZATION_ERRORS[type], with_rows(asked.request, field, refused))
            if message is not None:
                say(part, message)
            answer = part if answer is None else joined(answer, part)
    if answer is not None and not allowed:
        return answer
    there = yield from handled(asked, None if answer is None else with_rows(asked.request, field, allowed))
    return there if answer is None else joined(there, answer)


def handled(asked: Asked, request: Any) -> Pieces[Any]:
    """The answer to the request, or to the part of it that is given, in a task of `turns` that waits for it."""
    reply = asked.handle(request)
    if isinstance(reply, Pending):
        reply = yield reply
    return reply


def parted(rows: Iterable[T], is_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """The rows that are allowed, and the others. A client may send very many, so rows are not compared."""
    allowed: list[T] = []
    refused: list[T] = []
    for row in rows:
        (allowed if is_allowed(row) else refused).append(row)
    return allowed, refused


def with_rows(request: Any, field: str, rows: Iterable[Any]) -> Any:
    """A copy of the request with these rows only."""
    part = copy(request)
    setattr(part, field, list(rows))
    return part


def then(reply: Any, change: Callable[[Any], Any]) -> Any:
    """The reply after a change of its answer, now or when it is there."""
    return reply.map(change, type(reply)) if isinstance(reply, Pending) else change(reply)


def in_turns(asked: Asked, reply: Any, work: Callable[[Any], Pieces[Any]]) -> Any:
    """The same with a change that may take long, because there are very many rows."""

    def go_on(answer: Any) -> Any:
        return asked.services.env.turns.run(work(answer)) if isinstance(answer, Message) else answer

    return reply.and_then(go_on) if isinstance(reply, Pending) else go_on(reply)


def only_with(operation: AclOperation, type: ResourceType, field: str, name_of: NameOf) -> Access:
    """Everybody may ask; rows of the answer, which the sender has no right to see, are left out."""

    def access(asked: Asked) -> Reply:
        def leave_out(answer: Any) -> Pieces[Any]:
            kept = []
            for row in getattr(answer, field):
                yield
                if asked.rights.may(operation, type, name_of(row)):
                    kept.append(row)
            setattr(answer, field, kept)
            return answer

        return in_turns(asked, asked.handle(), leave_out)

    return access


def joined(answer: Any, refused: Any) -> Any:
    """The answer with the rows of the refused part. CLOSE, if there is none: its client hears of the refusal so."""
    if not isinstance(answer, Message):
        return CLOSE
    for name in refused._FIELDS:
        rows = getattr(refused, name)
        if isinstance(rows, list):
            getattr(answer, name).extend(rows)
    return answer


def say(answer: Any, message: str) -> None:
    """Set the message of all rows, at whatever depth."""
    for name in answer._FIELDS:
        value = getattr(answer, name)
        if name == "error_message":
            answer.error_message = message
        elif isinstance(value, list):
            for row in value:
                if isinstance(row, Struct):
                    say(row, message)
