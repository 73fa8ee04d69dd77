"""The commands' client of the HTTP API, against servers that redirect, are gone, or answer later."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from barnabas.cli.shared import http_client
from barnabas.cli.shared.exits import ExitCode, Failure
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target

Answer = tuple[int, dict[str, str], Any]


class Server:
    """A server on loopback that answers as told, and notes what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)  # the last one again and again
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                outer.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
                status, headers, body = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if status == 0:  # it dies
                    self.close_connection = True
                    return
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def error(name: str) -> dict[str, Any]:
    return {"error": {"name": name, "message": "do something."}}


def redirected(server: Server, path: str = "/v1/x") -> Answer:
    return 307, {"Location": f"http://{server.address}{path}"}, error("NOT_COORDINATOR")


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(*answers: Answer) -> Server:
        servers.append(Server(*answers))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def make_api(monkeypatch: pytest.MonkeyPatch) -> Callable[..., HttpApi]:
    """A client that knows the addresses of brokers 0, 1, …; None: that broker does not answer."""
    monkeypatch.setattr(http_client, "AGAIN_AFTER_MS", 1)
    monkeypatch.setattr(http_client, "AGAIN_WITHIN_MS", 200)

    def make(*addresses: str | None) -> HttpApi:
        api = HttpApi(None, Target("", 1, 1, as_json=False))

        def address(node_id: int) -> str:
            found = addresses[node_id]
            if found is None:
                raise Failure(f"broker {node_id} does not answer", ExitCode.FAILED)
            return found

        def brokers() -> list[int]:
            api._cluster_id = "cluster"
            return list(range(len(addresses)))

        monkeypatch.setattr(api, "address", address)
        monkeypatch.setattr(api, "brokers", brokers)
        return api

    return make


def test_names_are_encoded_and_the_cluster_is_named(
    serve: Callable[..., Server], make_api: Callable[..., HttpApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARNABAS_HTTP_TOKEN", "secret")
    server = serve((200, {}, {"a": 1}))
    query, names = {"state": "a b", "since": 5, "none": None}, {"group": "a/b %?é"}
    assert make_api(server.address).ask("GET", "/v1/groups/{group}", query=query, names=names) == {"a": 1}
    ((method, path, headers, _),) = server.asked
    assert (method, path) == ("GET", "/v1/groups/a%2Fb%20%25%3F%C3%A9?state=a+b&since=5")
    assert headers["Barnabas-Cluster"] == "cluster"
    assert headers["Authorization"] == "Bearer secret"


def test_a_redirection_keeps_method_and_body(serve: Callable[..., Server], make_api: Callable[..., HttpApi]) -> None:
    owner = serve((200, {}, {"done": True}))
    first = serve(redirected(owner))
    assert make_api(first.address).post("/v1/x", {"b": 2}) == {"done": True}
    ((method, path, headers, body),) = owner.asked
    assert (method, path, json.loads(body)) == ("POST", "/v1/x", {"b": 2})
    assert headers["Content-Type"] == "application/json"


def test_a_group_that_moves_is_asked_again(serve: Callable[..., Server], make_api: Callable[..., HttpApi]) -> None:
    server = serve((503, {"Retry-After": "1"}, error("NOT_COORDINATOR")), (200, {}, {}))
    assert make_api(server.address).get("/v1/x") == {}
    gone = serve((200, {}, {}))
    gone.close()
    server = serve(redirected(gone), (200, {}, {}))
    assert make_api(server.address).post("/v1/x", {}) == {}, "nothing was sent to the one that is gone"


def test_brokers_that_redirect_to_each_other_end(
    serve: Callable[..., Server], make_api: Callable[..., HttpApi]
) -> None:
    first, second = serve((200, {}, {})), serve((200, {}, {}))
    first.answers, second.answers = [redirected(second)], [redirected(first)]
    with pytest.raises(Failure, match="NOT_COORDINATOR"):
        make_api(first.address).get("/v1/x")


def test_another_broker_is_asked(serve: Callable[..., Server], make_api: Callable[..., HttpApi]) -> None:
    server = serve((200, {}, {"node_id": 1}))
    api = make_api(None, server.address)
    assert api.get("/v1/x") == {"node_id": 1}
    assert list(api.of_each_broker("/v1/x")) == [{"node_id": 1}]


def test_what_changes_something_is_not_sent_twice(
    serve: Callable[..., Server], make_api: Callable[..., HttpApi]
) -> None:
    server = serve((0, {}, None), (200, {}, {}))
    assert make_api(server.address).get("/v1/x") == {}
    server = serve((0, {}, None), (200, {}, {}))
    with pytest.raises(Failure, match="look before you repeat it"):
        make_api(server.address).post("/v1/x", {})
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ((404, {}, error("GROUP_ID_NOT_FOUND")), ExitCode.NOTHING_THERE, "GROUP_ID_NOT_FOUND: do something."),
        ((400, {}, error("INVALID_BODY")), ExitCode.NOT_VALID, "INVALID_BODY"),
        ((401, {}, error("TOKEN_NEEDED")), ExitCode.FAILED, "BARNABAS_HTTP_TOKEN"),
        ((421, {}, error("OTHER_CLUSTER")), ExitCode.FAILED, "http.listeners"),
        ((503, {}, error("NO_HTTP_API")), ExitCode.FAILED, "NO_HTTP_API"),
        ((503, {"Retry-After": "1"}, error("BUSY")), ExitCode.FAILED, "BUSY"),
        ((418, {}, b"<html>"), ExitCode.FAILED, "no HTTP API of Barnabas"),
    ],
)
def test_errors_are_sentences(
    serve: Callable[..., Server], make_api: Callable[..., HttpApi], answer: Answer, code: ExitCode, said: str
) -> None:
    with pytest.raises(Failure, match=said) as raised:
        make_api(serve(answer).address).get("/v1/x")
    assert raised.value.code == code


def test_why_brokers_serve_nobody_is_asked_of_all_at_once(
    serve: Callable[..., Server], make_api: Callable[..., HttpApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafka.errors import KafkaTimeoutError

    gone = serve((0, {}, None))
    healthy, unwell = serve((200, {}, {"status": "ok"})), serve((503, {}, {"why": "its session was lost"}))
    addresses = {0: healthy.address, 1: unwell.address, 2: gone.address, 3: "", 4: None}
    all_are_asked = threading.Barrier(len(addresses))

    def setting(_client: Any, node_id: int, name: str) -> str | None:
        assert name == "http.address"
        all_are_asked.wait(30)
        if addresses[node_id] is None:
            raise KafkaTimeoutError
        return addresses[node_id]

    monkeypatch.setattr(http_client, "broker_setting", setting)
    assert make_api().why_not_serving(addresses) == {
        0: None,
        1: "its session was lost",
        2: "it does not answer",
        3: None,
        4: "it does not answer",
    }
