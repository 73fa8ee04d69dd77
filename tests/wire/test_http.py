"""The HTTP API: what it answers, to whom, and what it costs to send it what it cannot read."""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker.http import routes, schemas
from barnabas.broker.http.openapi import document
from barnabas.broker.http.routes import TABLE, HttpAnswer, HttpError, HttpRequest, Parameter, Route
from barnabas.config.broker import BrokerConfig
from barnabas.config.settings import ConfigError
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ApiVersionsRequest, DescribeConfigsRequest, DescribeConfigsResponse
from barnabas.runtime.pending import Pending
from simulator.env import sim_env

sys.path.insert(0, str(Path(__file__).parent))
from http_client import HttpClient, ask, connect, port_of, request
from http_examples import EMPTY, EXAMPLES, commit, prepare

World = Any  # of conftest.py
TOKEN = "a-long-secret"
routes.load()


@pytest.fixture(scope="module")
def http_world(make_world: type[Any]) -> Iterator[World]:
    world = make_world(http_token=TOKEN, control_enable="true")
    prepare(world)
    yield world
    world.env.run(world.broker.stop())
    assert world.broker.http.handler_failures == 0
    assert not world.broker.http.connections
    assert world.broker.server.connections_elsewhere == 0
    assert world.escaped == []


@pytest.fixture
def add_route(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Add a route for one test."""
    monkeypatch.setattr(routes, "TABLE", dict(TABLE))

    def add(method: str, path: str, handler: Callable[..., Any], **settings: Any) -> None:
        handler.__name__ = "handler"
        routes.route(method, path, summary="", **settings)(handler)

    return add


def get(world: World, target: str, **settings: Any) -> Any:
    return world.env.run(ask(world.env, world.broker, "GET", target, **settings))


# ---- the document ----


# Those that remove something come last. tests/clients/test_testing.py has those that end a life.
STAYS = sorted((row for row in TABLE.values() if not row.ends_life), key=lambda row: row.method == "DELETE")


@pytest.mark.parametrize("row", STAYS, ids=lambda row: f"{row.method} {row.path}")
def test_every_answer_has_the_fields_that_the_document_declares(http_world: World, row: Route) -> None:
    assert EXAMPLES.get((row.method, row.path)), "this route has no example in http_examples.py"
    empty: set[str] = set()
    filled: set[str] = set()
    for example in EXAMPLES[row.method, row.path]:
        headers = {"Content_Type": "application/json"} if example.body is None and row.method != "GET" else {}
        request_of = (row.method, example.target, example.body)
        answer = http_world.env.run(ask(http_world.env, http_world.broker, *request_of, **headers))
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"] == row.content_type
        if row.answer is not None and "properties" in row.answer:
            assert schemas.problem(row.answer, answer.json) is None
            for place, has_items in arrays(row.answer, answer.json):
                (filled if has_items else empty).add(place)
    assert {place for place in empty - filled if place.rpartition(".")[2] not in EMPTY} == set(), "no example has items"


def test_a_broker_without_a_process_of_its_own_has_one_life(http_world: World) -> None:
    for path, body in (("snapshots", {}), ("restore", {"folder": "/nowhere"})):
        answer = http_world.env.run(ask(http_world.env, http_world.broker, "POST", f"/v1/control/{path}", body))
        assert answer.status == 409
        assert "only a broker that `barnabas start` has started" in answer.json["error"]["message"]


def arrays(schema: schemas.Schema, value: Any, place: str = "") -> Iterator[tuple[str, bool]]:
    """Every array that is declared, by its place, and whether it has items in this value."""
    if isinstance(value, list):
        yield place, bool(value)
        for item in value:
            yield from arrays(schema["items"], item, place)
    elif isinstance(value, dict):
        for name, field in schema.get("properties", {}).items():
            yield from arrays(field, value[name], f"{place}.{name}")


def test_the_document_describes_every_route(http_world: World) -> None:
    answer = get(http_world, "/v1/openapi.json")
    assert answer.json == json.loads(json.dumps(document()))
    paths = answer.json["paths"]
    assert {(method.upper(), path) for path, rows in paths.items() for method in rows} == set(TABLE)
    for (method, path), row in TABLE.items():
        operation = paths[path][method.lower()]
        assert operation["summary"]
        assert operation["description"], f"{method} {path} has no docstring"
        named = [each["name"] for each in operation["parameters"]]
        assert named == [*re.findall(r"{(\w+)}", path), *(each.name for each in row.query)]
        assert ("requestBody" in operation) == (row.body is not None)
    operations = [operation["operationId"] for rows in paths.values() for operation in rows.values()]
    assert len(set(operations)) == len(operations)


def test_the_document_is_valid_openapi(http_world: World) -> None:
    """Every schema has a type that is known, and a meaning; references lead somewhere."""
    text = json.dumps(document())
    assert set(re.findall(r'"\$ref": "([^"]*)"', text)) == {"#/components/schemas/Error"}

    def look(schema: Any) -> None:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert set(kinds) <= {"string", "integer", "number", "boolean", "array", "object", "null"}
        if schema["type"] == "array":
            look(schema["items"])
        for each in schema.get("properties", {}).values():
            assert each["description"]
            look(each)
        assert set(schema.get("required", ())) <= set(schema.get("properties", ()))

    for row in TABLE.values():
        for schema in (row.answer, row.body):
            if schema is not None:
                look(schema)


def test_an_error_is_as_the_document_says(http_world: World) -> None:
    answer = get(http_world, "/v1/nothing")
    assert answer.status == 404
    assert schemas.problem(document()["components"]["schemas"]["Error"], answer.json) is None


# ---- where it is ----


def test_the_address_is_a_read_only_setting(http_world: World) -> None:
    describe = DescribeConfigsRequest
    resource = describe.DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=None)
    (result,) = http_world.ask(ApiKey.DESCRIBE_CONFIGS, 1, describe(resources=[resource])).results
    rows = {row.name: row for row in result.configs}
    assert rows["http.address"].value == f"127.0.0.1:{port_of(http_world.broker)}"
    assert rows["http.address"].read_only
    assert rows["http.token"].value is None
    assert rows["http.token"].is_sensitive


@pytest.mark.parametrize(
    ("listeners", "advertised", "host"),
    [
        ("PLAINTEXT://10.0.0.7:9092", None, "10.0.0.7"),
        ("PLAINTEXT://127.0.0.1:9092", None, "127.0.0.1"),
        ("PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://kafka.example:9092", "kafka.example"),
        ("PLAINTEXT://10.0.0.7:9092", "PLAINTEXT://kafka.example:9092", "kafka.example"),
    ],
)
def test_an_api_at_all_addresses_is_told_as_where_clients_find_the_broker(
    make_world: type[Any], listeners: str, advertised: str | None, host: str
) -> None:
    settings = {} if advertised is None else {"advertised_listeners": advertised}
    world = make_world(http_listeners="http://0.0.0.0:8080", listeners=listeners, **settings)
    assert world.broker.config.http_address == f"{host}:8080"
    world.env.run(world.broker.stop())


def test_it_can_be_turned_off(make_world: type[Any]) -> None:
    world = make_world(http_listeners="none")
    assert world.broker.http.address is None
    describe = DescribeConfigsRequest
    resource = describe.DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=["http.address"])
    (result,) = world.ask(ApiKey.DESCRIBE_CONFIGS, 1, describe(resources=[resource])).results
    assert result.configs == []
    world.env.run(world.broker.stop())


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"http.address": "127.0.0.1:1"}, "http.address"),
        ({"http.listeners": "127.0.0.1:1"}, "http.listeners"),
        ({"http.listeners": "ftp://127.0.0.1:1"}, "http.listeners"),
        ({"http.listeners": "https://127.0.0.1:1"}, "ssl.keystore.location"),
        ({"http.listeners": "http://127.0.0.1"}, "http.listeners"),
        ({"http.listeners": ""}, "http.listeners"),
        ({"http.token": ""}, "http.token"),
        ({"http.token": "two words"}, "http.token"),
    ],
)
def test_settings_that_cannot_be(values: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.of(values)
    assert raised.value.key == key


def test_an_address_in_use_refuses_the_start_and_leaves_nothing(make_world: type[Any], http_world: World) -> None:
    env = http_world.env
    port = port_of(http_world.broker)
    before = dict(env.network.listeners)
    with pytest.raises(OSError, match="in use"):
        make_world(
            env=env,
            directories="/other",
            listeners="PLAINTEXT://127.0.0.1:9192",
            http_listeners=f"http://127.0.0.1:{port}",
        )
    assert env.network.listeners == before
    assert not env.disk.exists("/other/meta.properties")


# ---- groups ----


def test_a_group_is_listed_and_described(http_world: World) -> None:
    rows = {row["group"]: row for row in get(http_world, "/v1/groups").json["groups"]}
    assert (rows["billing"]["members"], rows["billing"]["partitions"]) == (1, 3)
    group = get(http_world, "/v1/groups/billing").json
    assert [(row["topic"], row["partition"], row["offset"]) for row in group["offsets"]] == [
        ("orders", index, 5) for index in range(3)
    ]
    assert [member["instance_id"] for member in group["members"]] == ["a"]
    states = {row["state"] for row in get(http_world, "/v1/groups?state=Dead").json["groups"]}
    assert states == set()


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("a/b", "a%2Fb"),
        ("../..", "%2E%2E%2F%2E%2E"),
        ("50%", "50%25"),
        ("groß 😀", "gro%C3%9F%20%F0%9F%98%80"),
        ("a+b?c#d", "a+b%3Fc%23d"),
        ("new\nline", "new%0Aline"),
    ],
)
def test_any_name_can_be_asked_for(http_world: World, name: str, encoded: str) -> None:
    commit(http_world, name, "orders")
    assert get(http_world, f"/v1/groups/{encoded}").json["group"] == name


@pytest.mark.parametrize("encoded", ["%", "%2", "%zz", "%ff", "%C3", "%+1"])
def test_names_that_are_not_encoded(http_world: World, encoded: str) -> None:
    answer = get(http_world, f"/v1/groups/{encoded}")
    assert (answer.status, answer.error) == (400, "INVALID_ENCODING")


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (frames.encode_request(ApiKey.API_VERSIONS, 0, 1, None, ApiVersionsRequest()), "it speaks Kafka's protocol"),
        (bytes.fromhex("16030100c8010000c4"), "it speaks TLS"),
    ],
)
def test_another_protocol_is_named(
    http_world: World, caplog: pytest.LogCaptureFixture, start: bytes, said: str
) -> None:
    async def run() -> Any:
        client = await connect(http_world.env, http_world.broker)
        client.transport.write(start)
        answer = await client.answer()
        await client.until_closed()
        return answer

    for _ in range(3):
        answer = http_world.env.run(run())
        assert (answer.status, answer.error) == (400, "NOT_HTTP")
        assert answer.json["error"]["message"].startswith(said)
    assert len([record for record in caplog.records if said in record.getMessage()]) <= 1  # another test may be first


def test_a_group_that_does_not_exist(http_world: World) -> None:
    answer = get(http_world, "/v1/groups/nobody")
    assert (answer.status, answer.error) == (404, "GROUP_ID_NOT_FOUND")


@pytest.mark.parametrize(
    ("owner", "leader", "answer", "status", "name"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0, None, 503, "COORDINATOR_LOAD_IN_PROGRESS"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 1, None, 503, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.NOT_COORDINATOR, None, None, 503, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.NOT_COORDINATOR, 0, None, 503, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.NOT_COORDINATOR, 1, None, 503, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.NOT_COORDINATOR, 1, "error", 503, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.NOT_COORDINATOR, 1, "", 503, "NO_HTTP_API"),
        (ErrorCode.NOT_COORDINATOR, 1, "192.0.2.1:80", 307, "NOT_COORDINATOR"),
    ],
)
@pytest.mark.parametrize("target", ["/v1/groups/team%2Fbilling", "http://localhost/v1/groups/team%2Fbilling"])
def test_a_group_of_another_coordinator(
    http_world: World,
    monkeypatch: pytest.MonkeyPatch,
    owner: ErrorCode,
    leader: int | None,
    answer: str | None,
    status: int,
    name: str,
    target: str,
) -> None:
    broker = http_world.broker
    result = DescribeConfigsResponse.DescribeConfigsResult
    config = DescribeConfigsResponse.DescribeConfigsResourceResult(name="http.address", value=answer)
    response = DescribeConfigsResponse(
        results=[result(error_code=42 if answer == "error" else 0, configs=[config] if answer else [])]
    )
    asked: list[Any] = []

    def send(message: DescribeConfigsRequest, version: int) -> Pending[Any]:
        asked.append(message.resources[0])
        pending: Pending[Any] = Pending()
        broker.env.clock.call_later(10, lambda: pending.complete(None if answer is None else response))
        return pending

    monkeypatch.setattr(broker.group_coordinator, "shard_of", lambda group: owner)
    known = None if leader is None else SimpleNamespace(broker_id=leader)
    monkeypatch.setattr(broker.metadata_cache, "leader", lambda topic, index: known)
    monkeypatch.setattr(broker.broker_clients, "to", lambda broker_id, purpose, within_ms: SimpleNamespace(send=send))
    found = get(http_world, target)
    assert (found.status, found.error) == (status, name)
    assert ("retry-after" in found.headers) == (status == 503 and name != "NO_HTTP_API")
    if status == 307:
        assert found.headers["location"] == "http://192.0.2.1:80/v1/groups/team%2Fbilling"
        assert (asked[0].resource_name, asked[0].configuration_keys) == ("1", ["http.address"])


def test_before_any_group_there_is_none(make_world: type[Any]) -> None:
    world = make_world()
    answer = get(world, "/v1/groups/billing")
    assert (answer.status, answer.error) == (404, "GROUP_ID_NOT_FOUND")
    world.env.run(world.broker.stop())


# ---- HTTP ----


@pytest.mark.parametrize(
    ("method", "target", "status", "name"),
    [
        ("GET", "/", 404, "UNKNOWN_PATH"),
        ("GET", "/v1/groups/", 404, "UNKNOWN_PATH"),
        ("GET", "/v1/groups/a/b", 404, "UNKNOWN_PATH"),
        ("GET", "*", 404, "UNKNOWN_PATH"),
        ("PUT", "/v1/groups", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/v1/groups", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/v1/nosuch", 404, "UNKNOWN_PATH"),
        ("OPTIONS", "/v1/groups", 405, "METHOD_NOT_ALLOWED"),
        ("BREW", "/v1/status", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v1/groups?stat=Dead", 400, "UNKNOWN_PARAMETER"),
        ("GET", "/v1/groups?state=Lively", 400, "INVALID_QUERY"),
        ("GET", "/v1/groups?state=%", 400, "INVALID_ENCODING"),
    ],
)
def test_what_is_not_there(http_world: World, method: str, target: str, status: int, name: str) -> None:
    answer = http_world.env.run(ask(http_world.env, http_world.broker, method, target))
    assert (answer.status, answer.error) == (status, name)
    assert answer.json["error"]["message"].endswith(".")
    if status == 405:
        assert answer.headers["allow"] == "GET, HEAD"


def test_the_absolute_form_is_understood(http_world: World) -> None:
    assert get(http_world, "http://localhost/v1/status").status == 200


def talk(world: World, conversation: Callable[[HttpClient], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    async def run() -> Any:
        client = await connect(world.env, world.broker, **settings)
        result = await conversation(client)
        client.transport.close()
        await world.env.clock.sleep(5)
        return result

    return world.env.run(run())


def test_head_has_no_body(http_world: World) -> None:
    async def conversation(client: HttpClient) -> None:
        for target in ("/v1/status", "/v1/groups"):  # with a length, and in pieces
            client.transport.write(request("HEAD", target))
            assert (await client.answer(without_body=True)).status == 200
        client.transport.write(request("GET", "/v1/status"))
        assert (await client.answer()).json["state"] == "serving"

    talk(http_world, conversation)


def test_pipelined_requests_are_answered_in_order(http_world: World) -> None:
    async def conversation(client: HttpClient) -> None:
        client.transport.write(request("GET", "/v1/groups/billing") + request("GET", "/v1/status") * 3)
        assert (await client.answer()).json["group"] == "billing"
        for _ in range(3):
            assert (await client.answer()).json["node_id"] == 0

    talk(http_world, conversation)


def test_a_request_may_come_byte_by_byte(http_world: World) -> None:
    async def conversation(client: HttpClient) -> None:
        for byte in request("GET", "/v1/status"):
            client.transport.write(bytes([byte]))
            await http_world.env.clock.sleep(1)
        assert (await client.answer()).status == 200

    talk(http_world, conversation)


def test_a_client_of_http_1_0_gets_the_end_of_the_connection(http_world: World) -> None:
    async def conversation(client: HttpClient) -> bytes:
        client.transport.write(b"GET /v1/groups HTTP/1.0\r\n\r\n")
        return await client.until_closed()

    head, _, body = talk(http_world, conversation).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"chunked" not in head.lower()
    assert json.loads(body)["node_id"] == 0


def test_a_client_that_closes_its_half_still_gets_its_answer(http_world: World) -> None:
    async def conversation(client: HttpClient) -> Any:
        client.transport.write(request("GET", "/v1/groups"))
        client.transport.write_eof()
        return await client.answer()

    assert talk(http_world, conversation).status == 200


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_body_waits_for_100_continue(http_world: World, add_route: Callable[..., None], pieces: int) -> None:
    add_route(
        "POST",
        "/v1/echo",
        lambda broker, asked: HttpAnswer.json(asked.body),
        body=schemas.record("", a=schemas.integer("")),
    )

    async def conversation(client: HttpClient) -> None:
        head, _, body = request("POST", "/v1/echo", {"a": 1}, Expect="100-continue").partition(b"\r\n\r\n")
        client.transport.write(head + b"\r\n\r\n")
        assert (await client.answer()).status == 100
        client.transport.write(body)
        assert (await client.answer()).json == {"a": 1}

    talk(http_world, conversation)


# ---- limits ----


def status_of(data: bytes) -> int:
    return int(data.split()[1])


@pytest.mark.parametrize("size", [16 * 1024 - 100, 17 * 1024, 200_000])
@pytest.mark.parametrize("place", ["target", "header"])
def test_the_head_has_a_limit(http_world: World, size: int, place: str) -> None:
    target, header = ("/v1/status", "x" * (size - 100)) if place == "header" else ("/" + "x" * (size - 100), "")

    async def conversation(client: HttpClient) -> bytes:
        client.transport.write(request("GET", target, X=header))
        while not client.data:
            await client._more()
        return client.data

    data = talk(http_world, conversation)
    if size < 16 * 1024:
        assert status_of(data) == (200 if place == "header" else 404)
    else:
        assert status_of(data) == 431


@pytest.mark.parametrize("excess", [-1, 0, 1])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_has_a_limit(http_world: World, add_route: Callable[..., None], excess: int, is_chunked: bool) -> None:
    add_route(
        "POST", "/v1/echo", lambda broker, asked: HttpAnswer.json({}), body=schemas.record("", a=schemas.text(""))
    )
    size = 1024 * 1024 + excess
    body = b'{"a":"' + b"x" * (size - 8) + b'"}'

    async def conversation(client: HttpClient) -> bytes:
        if is_chunked:
            head = request("POST", "/v1/echo", Content_Type="application/json", Transfer_Encoding="chunked")
            client.transport.write(head + b"%x\r\n" % size + body + b"\r\n0\r\n\r\n")
        else:
            client.transport.write(request("POST", "/v1/echo", body))
        while b"\r\n\r\n" not in client.data:
            await client._more()
        return client.data

    assert status_of(talk(http_world, conversation)) == (413 if excess > 0 else 200)


def test_a_body_in_many_chunks_does_not_hold_the_loop(
    http_world: World, add_route: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client is answered between them."""
    add_route(
        "POST", "/v1/echo", lambda broker, asked: HttpAnswer.json({}), body=schemas.record("", a=schemas.text(""))
    )
    body = b'{"a":"' + b"x" * 20_000 + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    async def conversation(client: HttpClient) -> None:
        other = await connect(http_world.env, http_world.broker)
        await http_world.env.clock.sleep(1)
        client.transport.write(
            request("POST", "/v1/echo", Content_Type="application/json", Transfer_Encoding="chunked") + chunks
        )
        other.transport.write(request("GET", "/v1/status"))
        assert (await other.answer()).status == 200
        assert client.data == b"", "the long one is not ready yet"
        assert (await client.answer()).status == 200
        other.transport.close()

    talk(http_world, conversation)


def test_one_connection_that_cannot_be_ended_keeps_no_other(
    http_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        clients = [await connect(http_world.env, http_world.broker) for _ in range(2)]
        await http_world.env.clock.sleep(10)
        first = next(iter(http_world.broker.http.connections))

        def raising() -> None:
            raise ValueError("planted")

        monkeypatch.setattr(first, "end_if_late", raising)
        for client in clients:
            client.transport.write(b"GET")
        await clients[1].until_closed()
        assert not clients[0].is_closed
        monkeypatch.undo()
        await clients[0].until_closed()

    http_world.env.run(run())
    assert "HTTP connections" in caplog.text
    assert "planted" in caplog.text


def test_an_address_that_nobody_has_asked_for_refuses_no_start(
    make_world: type[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = sim_env(5)
    listen = env.network.listen

    async def refusing(host: str, port: int, *more: Any) -> Any:
        if port == 0:
            raise OSError(99, "Cannot assign requested address")
        return await listen(host, port, *more)

    object.__setattr__(env.network, "listen", refusing)
    world = make_world(env=env)
    assert world.broker.http.address is None
    assert "there is no HTTP API" in caplog.text
    world.env.run(world.broker.stop())


def test_the_number_of_connections_has_a_limit(http_world: World, add_route: Callable[..., None]) -> None:
    add_route("GET", "/v1/wait", lambda broker, asked: Pending())

    async def run() -> None:
        clients = []
        for _ in range(129):
            clients.append(await connect(http_world.env, http_world.broker))
            clients[-1].transport.write(request("GET", "/v1/wait"))
            await http_world.env.clock.sleep(1)
        await http_world.env.clock.sleep(10)
        assert [client.is_closed for client in clients] == [False] * 128 + [True]
        clients[0].transport.abort()
        await http_world.env.clock.sleep(10)
        again = await connect(http_world.env, http_world.broker)
        again.transport.write(request("GET", "/v1/status"))
        assert (await again.answer()).status == 200
        for client in (*clients, again):
            client.transport.abort()
        await http_world.env.clock.sleep(10)

    http_world.env.run(run())
    assert not http_world.broker.http.connections
    assert "HTTP connections" not in [task.name for task in http_world.env.upkeep.tasks]


def test_clients_that_say_nothing_keep_no_others_out(http_world: World) -> None:
    async def run() -> None:
        polite = await connect(http_world.env, http_world.broker)
        polite.transport.write(request("GET", "/v1/status"))
        assert (await polite.answer()).status == 200
        silent = [await connect(http_world.env, http_world.broker) for _ in range(300)]
        await http_world.env.clock.sleep(10)
        assert len(http_world.broker.http.connections) == 128
        assert [client.is_closed for client in silent] == [True] * 173 + [False] * 127
        polite.transport.write(request("GET", "/v1/status"))
        assert (await polite.answer()).status == 200, "one that has asked has more time"
        for client in (*silent, polite):
            client.transport.close()
        await http_world.env.clock.sleep(10)

    http_world.env.run(run())
    assert not http_world.broker.http.connections


def test_connections_share_the_descriptors_of_the_broker(http_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_world.broker.server, "_descriptors", len(http_world.broker.server.connections))

    async def run() -> None:
        client = await connect(http_world.env, http_world.broker)
        assert await client.until_closed() == b""

    http_world.env.run(run())


def test_a_request_that_does_not_end_is_told_so(http_world: World) -> None:
    async def conversation(client: HttpClient) -> tuple[bytes, float]:
        began_ms = http_world.env.clock.monotonic_ms()
        client.transport.write(request("GET", "/v1/status")[:-2])
        return await client.until_closed(), http_world.env.clock.monotonic_ms() - began_ms

    data, took_ms = talk(http_world, conversation)
    assert status_of(data) == 408
    assert 30_000 <= took_ms < 34_000


def test_a_connection_without_requests_is_closed(http_world: World) -> None:
    async def conversation(client: HttpClient) -> tuple[bytes, float]:
        client.transport.write(request("GET", "/v1/status"))
        await client.answer()
        began_ms = http_world.env.clock.monotonic_ms()
        return await client.until_closed(), http_world.env.clock.monotonic_ms() - began_ms

    data, took_ms = talk(http_world, conversation)
    assert data == b""
    assert 60_000 <= took_ms < 62_000


def test_an_answer_that_does_not_come_is_told_so(http_world: World, add_route: Callable[..., None]) -> None:
    waiting: list[Pending[HttpAnswer]] = []

    def wait(broker: Any, asked: HttpRequest) -> Pending[HttpAnswer]:
        waiting.append(Pending())
        waiting[-1].on_cancel = lambda: None
        return waiting[-1]

    add_route("GET", "/v1/wait", wait, within_ms=5_000)
    assert get(http_world, "/v1/wait").status == 504
    assert waiting[0].cancelled

    async def conversation(client: HttpClient) -> None:
        client.transport.write(request("GET", "/v1/wait"))
        await http_world.env.clock.sleep(10)

        client.transport.abort()  # a client that goes away cancels what only waits

    talk(http_world, conversation)
    assert waiting[1].cancelled


def test_a_long_answer_is_made_as_the_client_takes_it(http_world: World, add_route: Callable[..., None]) -> None:
    made = 0

    def rows() -> Generator[str, None, None]:
        nonlocal made
        for _ in range(5_000):
            made += 1
            yield "x" * 1000

    add_route("GET", "/v1/long", lambda broker, asked: HttpAnswer.json({"rows": rows()}))

    async def conversation(client: HttpClient) -> int:
        client.transport.pause_reading()
        client.transport.write(request("GET", "/v1/long"))
        await http_world.env.clock.sleep(1_000)
        held = made
        client.transport.resume_reading()
        assert (await client.answer()).json["rows"] == ["x" * 1000] * 5_000
        return held

    assert talk(http_world, conversation) < 500

    async def taking_nothing(client: HttpClient) -> None:
        client.transport.pause_reading()
        client.transport.write(request("GET", "/v1/long"))
        await http_world.env.clock.sleep(35_000)

    talk(http_world, taking_nothing)
    assert not http_world.broker.http.connections


# ---- who may ask ----


@pytest.mark.parametrize(
    ("source", "headers", "status", "name"),
    [
        ("127.0.0.1", {}, 200, ""),
        ("127.0.0.1", {"host": "127.0.0.1:80"}, 200, ""),
        ("127.0.0.1", {"host": "[::1]:80"}, 200, ""),
        ("127.0.0.1", {"host": "evil.example"}, 403, "FOREIGN_HOST"),
        ("127.0.0.1", {"host": "127.0.0.1.evil.example"}, 403, "FOREIGN_HOST"),
        ("127.0.0.1", {"host": "evil.example", "Authorization": f"Bearer {TOKEN}"}, 200, ""),
        ("127.0.0.1", {"Origin": "http://evil.example"}, 403, "FOREIGN_ORIGIN"),
        ("127.0.0.1", {"Origin": "null"}, 403, "FOREIGN_ORIGIN"),
        ("127.0.0.1", {"Origin": "http://localhost"}, 200, ""),
        ("192.0.2.1", {}, 401, "TOKEN_NEEDED"),
        ("192.0.2.1", {"Authorization": "Bearer wrong"}, 401, "TOKEN_NEEDED"),
        ("192.0.2.1", {"Authorization": f"Basic {TOKEN}"}, 401, "TOKEN_NEEDED"),
        ("192.0.2.1", {"Authorization": "Bearer"}, 401, "TOKEN_NEEDED"),
        ("192.0.2.1", {"Authorization": f"Bearer {TOKEN}", "host": "broker.example"}, 200, ""),
    ],
)
def test_who_may_ask(http_world: World, source: str, headers: dict[str, str], status: int, name: str) -> None:
    answer = get(http_world, "/v1/status", source=source, **headers)
    assert answer.status == status
    assert not name or answer.error == name
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_who_guesses_the_token_is_told_of(http_world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = http_world.broker.server.failed_logins
    for guess in ("Bearer guess", "Bearer guess-again", f"Basic {TOKEN}"):
        assert get(http_world, "/v1/status", source="192.0.2.77", Authorization=guess).status == 401
    assert get(http_world, "/v1/status", source="192.0.2.77").status == 401  # it does not guess
    assert get(http_world, "/v1/status", Authorization="Bearer guess").status == 200  # nor is a token needed here
    assert http_world.broker.server.failed_logins == before + 3
    (line,) = [each for each in caplog.messages if "192.0.2.77" in each]
    assert "http.token" in line
    assert "guess" not in line


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready?", "/health?x=1", "/health?%"])
def test_whether_it_is_healthy_everybody_may_ask(http_world: World, path: str) -> None:
    assert get(http_world, path, source="192.0.2.1", host="kafka1.example").status == 200
    assert get(http_world, "/v1/health", source="192.0.2.1").status == 401


def test_a_stranger_sends_no_body_to_health_either(http_world: World) -> None:
    async def conversation(client: HttpClient) -> bytes:
        client.transport.write(request("GET", "/health", b"x" * 1000)[:-500])
        return await client.until_closed()

    assert status_of(talk(http_world, conversation, source="192.0.2.1")) == 401


def test_a_broker_is_ready_while_it_serves_and_lives_before(
    make_world: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()

    def answers() -> list[tuple[int, Any]]:
        return [
            (answer.status, answer.json.get("why", "live"))
            for answer in (get(world, path) for path in ("/health", "/health/ready", "/health/live"))
        ]

    assert answers() == [(200, None), (200, None), (200, "live")]
    world.broker.server.serving = False
    assert answers() == [(503, "it starts"), (503, "it starts"), (200, "live")]
    world.broker.server.serving = True
    world.broker.lease._session_id += 1
    assert answers()[0] == (503, "it does not reach the coordination tree, so it acknowledges nothing")
    monkeypatch.setattr(type(world.broker.coordination), "trouble", "the tree was replaced")
    assert answers()[0] == (503, "the tree was replaced")
    assert get(world, "/v1/health").json["tree_trouble"] == "the tree was replaced"
    monkeypatch.undo()
    world.broker.lease._session_id -= 1
    world.env.run(world.broker.stop())


def test_topics_are_listed(http_world: World) -> None:
    rows = get(http_world, "/v1/topics").json["topics"]
    assert {row["topic"]: row["partitions"] for row in rows} == {"orders": 3}
    everything = get(http_world, "/v1/topics?internal=true").json["topics"]
    assert {row["topic"] for row in everything} >= {"orders", "__consumer_offsets"}
    orders = get(http_world, "/v1/topics/orders").json
    assert [(row["partition"], row["leader"], row["in_sync"]) for row in orders["partitions"]] == [
        (index, 0, [0]) for index in range(3)
    ]
    missing = get(http_world, "/v1/topics/none")
    assert (missing.status, missing.error) == (404, "UNKNOWN_TOPIC_OR_PARTITION")


def test_a_client_may_name_its_cluster(http_world: World) -> None:
    assert get(http_world, "/v1/status", Barnabas_Cluster=http_world.broker.cluster_id).status == 200
    answer = get(http_world, "/v1/status", Barnabas_Cluster="another")
    assert (answer.status, answer.error) == (421, "OTHER_CLUSTER")


def test_without_a_token_other_hosts_are_refused(make_world: type[Any]) -> None:
    world = make_world()
    answer = get(world, "/v1/status", source="192.0.2.1", Authorization="Bearer None")
    assert (answer.status, answer.error) == (401, "TOKEN_NEEDED")
    assert "http.token" in answer.json["error"]["message"]
    world.env.run(world.broker.stop())


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_web_page_can_send_changes_nothing(http_world: World, add_route: Callable[..., None], kind: str) -> None:
    handled = []
    headers = {"Content_Type": kind} if kind else {}
    for method in ("POST", "DELETE"):
        add_route(method, "/v1/change", lambda broker, asked: handled.append(1), body=schemas.record(""))
        answer = http_world.env.run(ask(http_world.env, http_world.broker, method, "/v1/change", **headers))
        assert (answer.status, answer.error) == (415, "NOT_JSON")
    assert handled == []


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("POST", "/v1/control/rules", "the body is a JSON object with effect, and any of api, when, error,"),
        ("POST", "/v1/control/clock", "the body is a JSON object, also {}, with any of advance_ms, stands, sessions."),
        ("DELETE", "/v1/control/rules", "; it has no body."),
    ],
)
def test_who_sends_nothing_is_told_what_to_send(http_world: World, method: str, path: str, wanted: str) -> None:
    """Until 2026-12-01 it was only that JSON is missing."""
    sent = http_world.env.run(ask(http_world.env, http_world.broker, method, path))
    assert (sent.status, sent.error) == (415, "NOT_JSON")
    assert wanted in sent.json["error"]["message"]
    if method == "POST":
        as_json = {"Content_Type": "application/json"}
        sent = http_world.env.run(ask(http_world.env, http_world.broker, method, path, **as_json))
        assert (sent.status, sent.error) == (400, "INVALID_BODY")
        assert f"the body is empty; {wanted}" in sent.json["error"]["message"]


def test_a_stranger_sends_no_body(http_world: World) -> None:
    async def conversation(client: HttpClient) -> bytes:
        client.transport.write(request("POST", "/v1/groups", b"x" * 1000)[:-500])
        return await client.until_closed()

    assert status_of(talk(http_world, conversation, source="192.0.2.1")) == 401


# ---- bodies ----

BODY = schemas.record(
    "", optional=["b"], a=schemas.integer("", least=1), b=schemas.array(schemas.text("", one_of=["x"]), "")
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is empty"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":1,"a":2}', "twice"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' + b"9" * 5_000 + b"}", "not JSON"),
        (b"[]", "not of type object"),
        (b"{}", "lacks the field a"),
        (b'{"a":"1"}', "the body.a is not of type integer"),
        (b'{"a":true}', "the body.a is not of type integer"),
        (b'{"a":1.5}', "the body.a is not of type integer"),
        (b'{"a":0}', "less than 1"),
        (b'{"a":1,"c":2}', "'c'"),
        (b'{"a":1,"b":["y"]}', "the body.b[0] is none of x"),
        (b'{"a":1,"b":["\\ud800"]}', "surrogate"),
    ],
)
def test_bodies_that_are_refused(http_world: World, add_route: Callable[..., None], body: bytes, message: str) -> None:
    add_route("POST", "/v1/echo", lambda broker, asked: HttpAnswer.json(asked.body), body=BODY)
    answer = http_world.env.run(ask(http_world.env, http_world.broker, "POST", "/v1/echo", body))
    assert (answer.status, answer.error) == (400, "INVALID_BODY")
    assert message in answer.json["error"]["message"]


def test_a_body_where_none_belongs(http_world: World) -> None:
    answer = http_world.env.run(ask(http_world.env, http_world.broker, "GET", "/v1/status", {}))
    assert (answer.status, answer.error) == (400, "INVALID_BODY")


# ---- handlers ----


def test_what_a_handler_may_return(http_world: World, add_route: Callable[..., None]) -> None:
    async def in_steps(broker: Any, asked: HttpRequest) -> HttpAnswer:
        await broker.env.clock.sleep(10)
        return HttpAnswer.json({"how": "coroutine"})

    def in_pieces(broker: Any, asked: HttpRequest) -> Generator[Any, Any, HttpAnswer]:
        later: Pending[str] = Pending()
        broker.env.clock.call_later(10, lambda: later.complete("pieces"))
        return HttpAnswer.json({"how": (yield later)})

    async def refusing(broker: Any, asked: HttpRequest) -> HttpAnswer:
        raise HttpError(409, "NON_EMPTY_GROUP", "stop its members first.")

    def refusing_in_pieces(broker: Any, asked: HttpRequest) -> Generator[Any, Any, HttpAnswer]:
        later: Pending[None] = Pending()
        broker.env.clock.call_later(10, lambda: later.complete(None))
        yield later
        raise HttpError(409, "NON_EMPTY_GROUP", "stop its members first.")

    add_route("GET", "/v1/coroutine", in_steps)
    add_route("GET", "/v1/pieces", in_pieces)
    add_route("GET", "/v1/refusing", refusing)
    add_route("GET", "/v1/refusing_in_pieces", refusing_in_pieces)
    assert get(http_world, "/v1/coroutine").json == {"how": "coroutine"}
    assert get(http_world, "/v1/pieces").json == {"how": "pieces"}
    for path in ("/v1/refusing", "/v1/refusing_in_pieces"):
        answer = get(http_world, path)
        assert (answer.status, answer.error) == (409, "NON_EMPTY_GROUP")


def test_a_handler_that_raises_costs_its_request_only(make_world: type[Any], add_route: Callable[..., None]) -> None:
    world = make_world()

    def raising(broker: Any, asked: HttpRequest) -> HttpAnswer:
        raise KeyError("a bug")

    async def raising_later(broker: Any, asked: HttpRequest) -> HttpAnswer:
        raise KeyError("a bug")

    def rows() -> Generator[int, None, None]:
        yield 1
        raise KeyError("a bug")

    add_route("GET", "/v1/raising", raising)
    add_route("GET", "/v1/raising_later", raising_later)
    add_route("GET", "/v1/breaking", lambda broker, asked: HttpAnswer.json({"rows": rows()}))

    async def conversation(client: HttpClient) -> None:
        for path in ("/v1/raising", "/v1/raising_later"):
            client.transport.write(request("GET", path))
            answer = await client.answer()
            assert (answer.status, answer.error) == (500, "UNKNOWN_SERVER_ERROR")
        client.transport.write(request("GET", "/v1/breaking"))
        data = await client.until_closed()
        assert not data.endswith(b"0\r\n\r\n")

    talk(world, conversation)
    assert world.broker.http.handler_failures == 3
    world.env.run(world.broker.stop())
    assert world.escaped == []


def test_a_path_that_is_no_text_can_be_answered() -> None:
    assert HttpAnswer.json({"path": "/data\udcff"}).body == b'{"path":"/data?"}\n'


def test_parameters_have_types() -> None:
    number = Parameter("n", schemas.integer(""))
    assert number.read([]) is None
    assert number.read(["-12"]) == -12
    for wrong in ("", "-", "1_0", "１", "1.5", "9" * 30):
        with pytest.raises(HttpError):
            number.read([wrong])
    assert Parameter("b", schemas.boolean("")).read(["true"]) is True
    with pytest.raises(HttpError):
        Parameter("b", schemas.boolean("")).read(["yes"])
    with pytest.raises(HttpError):
        number.read(["1", "2"])


# ---- start and stop ----


def test_a_broker_that_starts_says_so(http_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_world.broker.server, "serving", False)
    assert get(http_world, "/v1/status").json["state"] == "starting"
    assert get(http_world, "/v1/openapi.json").status == 200
    answer = get(http_world, "/v1/groups")
    assert (answer.status, answer.error, answer.headers["retry-after"]) == (503, "BROKER_NOT_AVAILABLE", "1")


@pytest.mark.parametrize("client_takes", [True, False])
def test_a_broker_that_stops_ends_a_long_answer(
    make_world: type[Any], add_route: Callable[..., None], client_takes: bool
) -> None:
    world = make_world()
    add_route(
        "GET", "/v1/long", lambda broker, asked: HttpAnswer.json({"rows": (each for each in ["x" * 1000] * 5_000)})
    )

    async def run() -> None:
        client = await connect(world.env, world.broker)
        await ask(world.env, world.broker, "GET", "/v1/status")
        client.transport.pause_reading()
        client.transport.write(request("GET", "/v1/long"))
        await world.env.clock.sleep(10)
        began_ms = world.env.clock.monotonic_ms()
        stopping = asyncio.ensure_future(world.broker.stop())
        await world.env.clock.sleep(1)
        if client_takes:
            client.transport.resume_reading()
            assert len((await client.answer()).json["rows"]) == 5_000
        await stopping
        assert world.env.clock.monotonic_ms() - began_ms < 3_000

    world.env.run(run())
    assert world.escaped == []


def test_a_broker_that_stops_answers_what_waits(make_world: type[Any], add_route: Callable[..., None]) -> None:
    world = make_world()
    add_route("GET", "/v1/wait", lambda broker, asked: Pending())

    async def run() -> None:
        idle, waiting, changing = [await connect(world.env, world.broker) for _ in range(3)]
        await ask(world.env, world.broker, "GET", "/v1/status")
        waiting.transport.write(request("GET", "/v1/wait"))
        await world.env.clock.sleep(10)
        stopping = asyncio.ensure_future(world.broker.stop())
        answer = await waiting.answer()
        assert (answer.status, answer.error) == (503, "BROKER_NOT_AVAILABLE")
        assert await idle.until_closed() == b""
        await changing.until_closed()
        await stopping

    world.env.run(run())
    assert not world.broker.http.connections
    assert not world.env.network.listeners
    assert world.escaped == []
