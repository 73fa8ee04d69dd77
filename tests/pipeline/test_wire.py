"""The pipeline's own client: a connection that is gone is not asked again."""

import socket
import threading
from collections.abc import Iterator

import pytest
from barnabas.pipeline.wire import Cluster, UnreachableError
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import ApiVersionsResponse, MetadataRequest, MetadataResponse


class Broker:
    """Answers ApiVersions and Metadata on every connection but the first, which it closes after ApiVersions."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.accepted = 0
        self.closed_first = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.accepted += 1
            with connection, connection.makefile("rb") as requests:
                while size := requests.read(4):
                    header, _ = frames.decode_request(requests.read(int.from_bytes(size, "big")))
                    row = ApiVersionsResponse.ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=9)
                    is_first = header.api_key == ApiKey.API_VERSIONS
                    answer = ApiVersionsResponse(api_keys=[row]) if is_first else MetadataResponse()
                    parts = frames.encode_response(header.api_key, header.api_version, header.correlation_id, answer)
                    connection.sendall(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]
                    if self.accepted == 1:
                        connection.shutdown(socket.SHUT_RDWR)
                        break
            self.closed_first.set()


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.socket.close()


def test_a_connection_on_which_nothing_can_be_sent_is_made_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    send = socket.socket.sendall

    def sendall(self: socket.socket, data: bytes) -> None:
        if broker.closed_first.is_set() and broker.accepted == 1 and self.getpeername()[1] == broker.port:
            refused.append(data)
            raise BrokenPipeError("gone")  # as when the broker's reset has come before
        send(self, data)

    with Cluster([f"127.0.0.1:{broker.port}"], retry_timeout_s=2.0) as cluster:
        connection = cluster._connection(("127.0.0.1", broker.port))
        assert connection is cluster._connection(("127.0.0.1", broker.port))
        assert broker.closed_first.wait(200)
        monkeypatch.setattr(socket.socket, "sendall", sendall)
        try:
            cluster.ask_any(ApiKey.METADATA, MetadataRequest(topics=[]))
        except UnreachableError:
            pytest.fail("the broken connection was used again and again")
    assert broker.accepted >= 2
