"""The classes of all requests and responses, made on first use (types: messages.pyi).

`FetchRequest` and `FetchResponse` come from `schemas/fetch.txt`; the structures inside are attributes of their
message: `FetchResponse.PartitionData(partition_index=0, ...)`.
"""

from functools import cache
from typing import Any

from barnabas.protocol import schema
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Message, make_class

_FILES = {key.kafka_name: key.name.lower() for key in ApiKey}


def __getattr__(name: str) -> Any:
    for suffix in ("Request", "Response"):
        base = name.removesuffix(suffix)
        if base is not name and base in _FILES:
            for class_name, message in schema.load(_FILES[base]).items():
                globals()[class_name] = make_class(message, __name__)
            return globals()[name]
    raise AttributeError(f"no message is called {name}")


@cache
def request_class(key: int) -> type[Message]:
    """The request of an API. KeyError when the API has no schema here."""
    return _class(key, "Request")


@cache
def response_class(key: int) -> type[Message]:
    """The response of an API. KeyError when the API has no schema here."""
    return _class(key, "Response")


def _class(key: int, suffix: str) -> type[Message]:
    if key not in ApiKey._value2member_map_:
        raise KeyError(key)
    name = ApiKey(key).kafka_name + suffix
    try:
        cls: type[Message] = globals().get(name) or __getattr__(name)
    except FileNotFoundError:
        raise KeyError(key) from None
    return cls
