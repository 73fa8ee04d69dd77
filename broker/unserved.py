"""What is said to a client whose request is not served: another protocol, an API that is not built, a wrong version."""

from typing import TYPE_CHECKING, Any

from barnabas.broker.refusals import Refusals, not_built
from barnabas.broker.requests import TABLE, RequestContext
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.server import Server

HTTP_ANSWER = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n%s\n"


def answer_to_unserved(refusals: Refusals, header: frames.RequestHeader, client_host: str) -> list[Any] | None:
    """The frame of the answer to an ApiVersions that is too new (or negative), with the versions served (KIP-511).

    None: the connection is closed, and the log says why.
    """
    api_key, api_version, correlation_id = header.api_key, header.api_version, header.correlation_id
    row = TABLE.get(api_key)
    if row is None or api_key != ApiKey.API_VERSIONS:
        context = RequestContext(api_key, api_version, correlation_id, header.client_id, client_host)
        why = not_built(api_key) if row is None else f"versions {row.first_version} to {row.last_version} are served"
        what = "version %d; its connection is closed: " + why
        refusals.note(context, ErrorCode.UNSUPPORTED_VERSION, what, api_version)
        return None
    from barnabas.broker.api.api_versions import too_new

    return frames.encode_response(api_key, 0, correlation_id, too_new(row))


def words_for_size(server: "Server", size: int, start: bytes, limit: int) -> tuple[str, str, bytes | None]:
    """Of a frame that cannot have this size, often the first bytes of another protocol: its kind, what is said of it,
    and what its client is sent."""
    protocol = frames.foreign_protocol(start)
    if protocol is None:
        if limit != server.frame_bytes_max:
            return "size before login", f"a frame of {size} bytes before it has logged in ({limit} at most)", None
        return "size", f"a frame of {size} bytes (socket.request.max.bytes={limit})", None
    what = server.words_for_foreign(protocol)
    return protocol, what, HTTP_ANSWER % what.encode() if protocol == "HTTP" else None
