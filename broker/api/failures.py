"""Answers that have one error for everything that was asked, as the rows of APIs want them (`failure=`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from barnabas.broker.requests import Failure
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message, Struct
from barnabas.protocol.schema import Structure

# Fields that say what a row is about. They have the same names in requests and in answers.
_ABOUT = ("name", "topic", "topic_id", "partition", "partition_index", "index", "resource_type", "resource_name")


def each_row(*, value: str = "", also: Mapping[str, object] = MappingProxyType({}), **lists: str) -> Failure:
    """Each row of a request fails.

    `lists`: the list of rows in the request, then the list in each of these rows, if there is one; and how they are
    called in the answer. The innermost rows of the answer have the error, and what they have `also`. `value`: what a
    row that is only a name or a number is called in the answer.
    """

    def rows(
        answer: type[Message], structure: Structure, asked: Any, names: list[tuple[str, str]], error: ErrorCode
    ) -> dict[str, list[Any]]:
        (wanted, given), *inner = names
        field = next(field for field in structure.fields if field.name == given)
        assert field.structure is not None
        make = getattr(answer, field.type)
        found = []
        for row in getattr(asked, wanted) or ():
            about = {value: row}
            if isinstance(row, Struct):
                about = {name: getattr(row, name) for name in _ABOUT if name in row._FIELDS and name in make._FIELDS}
            about |= rows(answer, field.structure, row, inner, error) if inner else {"error_code": error, **also}
            found.append(make(**about))
        return {given: found}

    def failed(request: Any, error: ErrorCode) -> Any:
        answer = messages.response_class(request.API_KEY)
        return answer(**rows(answer, answer.SCHEMA.root, request, list(lists.items()), error))

    return failed
