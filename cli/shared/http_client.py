"""The commands' way to the HTTP API: it finds the address through --bootstrap, and follows redirections."""

import asyncio
import http.client
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from barnabas.cli.shared.client import answered, broker_setting, client_id, is_barnabas, no_group, of_each
from barnabas.cli.shared.exits import ExitCode, Failure, fail
from barnabas.cli.shared.login import read, tls_of_http
from barnabas.cli.shared.target import Target
from barnabas.config.listeners import is_loopback
from barnabas.runtime.clock import RealClock

ANSWERS_WITHIN_S = 75.0  # a little longer than a broker takes to say that it has no answer
CONNECTED_WITHIN_S = 5.0
LOOKED_WITHIN_S = 2.0  # a broker that stands still must not keep the others from being shown
REDIRECTIONS_MAX = 3  # more of them: brokers that do not know yet who coordinates the group
AGAIN_WITHIN_MS, AGAIN_AFTER_MS = 15_000, 250  # while a group moves to another broker
TOKEN_VARIABLE = "BARNABAS_HTTP_TOKEN"


class _NotReceivedError(Exception):
    """A request was certainly not received, or repeating it does no harm."""


class _NotTrustedError(_NotReceivedError):
    """The HTTP API shows a certificate that nobody here trusts."""


class HttpApi:
    """The HTTP API of the brokers that an admin client knows.

        with admin(target) as client:
            api = HttpApi(client, target)
            group = api.get("/v1/groups/{group}", group="billing")
            rows = api.of_each_broker("/v1/groups")

    What fails ends the command with the sentence of the broker. The token for brokers on other machines is in the
    environment variable BARNABAS_HTTP_TOKEN.
    """

    def __init__(self, client: Any, target: Target) -> None:
        self._client = client
        self._target = target
        self._addresses: dict[int, str] = {}
        self._cluster_id: str | None = None
        self._token = os.environ.get(TOKEN_VARIABLE)

    # ------------------------------------------------------------------ addresses

    def brokers(self) -> list[int]:
        """The numbers of the brokers that live."""
        cluster = answered(self._client, self._client.describe_cluster)
        self._cluster_id = cluster["cluster_id"]
        return sorted(int(broker["broker_id"]) for broker in cluster["brokers"])

    def address(self, node_id: int) -> str:
        """host:port of a broker's API. Failure: it has none, or does not answer."""
        found = self._addresses.get(node_id)
        if found is None:
            found = self._addresses[node_id] = self._ask_address(node_id)
        return found

    def _ask_address(self, node_id: int) -> str:
        from kafka.errors import KafkaError

        try:
            address = broker_setting(self._client, node_id, "http.address")
            if not address and not is_barnabas(self._client, node_id):
                why = "it is no Barnabas (Apache Kafka has none)"
                fail(f"broker {node_id} has no HTTP API, which this command needs: {why}.")
        except KafkaError as error:
            fail(f"broker {node_id} does not answer: {getattr(error, 'message', '') or error}")
        return address or fail(
            f"broker {node_id} has no HTTP API, which this command needs. Start it without http.listeners=none."
        )

    # ------------------------------------------------------------------ requests

    def get(self, path: str, /, **names: str) -> Any:
        """The answer to GET. `names` are the parameters of the path."""
        return self.ask("GET", path, names=names)

    def post(self, path: str, body: Any, /, **names: str) -> Any:
        """The answer to POST with a JSON body."""
        return self.ask("POST", path, body, names=names)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        /,
        query: dict[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
        node_id: int | None = None,
    ) -> Any:
        """The answer of one broker: `node_id`, or any, which redirects to the one that is responsible.

        While a group moves to another broker, it is asked again; but what changes something is sent again only if it
        was certainly not received.
        """
        if "" in (names or {}).values():
            fail("a name is empty; what has no name cannot be asked for over HTTP.", ExitCode.NOT_VALID)
        given = {key: value for key, value in (query or {}).items() if value is not None}
        target = path.format_map({name: quote(value, safe="") for name, value in (names or {}).items()})
        target += "?" + urlencode(given) if given else ""
        if self._cluster_id is None:
            self.brokers()
        clock = RealClock()
        last_ms = clock.monotonic_ms() + (AGAIN_WITHIN_MS if node_id is None else 0)
        address = None
        redirections = 0
        while True:
            is_last = clock.monotonic_ms() >= last_ms
            try:
                address = address or (self.entry() if node_id is None else self.address(node_id))
                status, headers, content = self._send(method, address, target, body)
            except _NotReceivedError as error:
                if is_last or isinstance(error, _NotTrustedError):
                    fail(str(error))
                address = None
                self._addresses.clear()
            else:
                location = headers.get("Location") if status == 307 else None
                if 200 <= status < 300:
                    return json.loads(content)
                if location and redirections < REDIRECTIONS_MAX:
                    redirections += 1
                    found = urlsplit(location)
                    address = f"https://{found.netloc}" if found.scheme == "https" else found.netloc
                    continue
                if is_last or not (location or (status == 503 and headers.get("Retry-After"))):
                    self._fail(address, status, content, (names or {}).get("group"))
                address, redirections = None, 0
            asyncio.run(clock.sleep(AGAIN_AFTER_MS))

    def entry(self) -> str:
        """The address of the first broker that answers. Failure: no broker has an HTTP API."""
        failure = None
        for node_id in self.brokers():
            try:
                return self.address(node_id)
            except Failure as error:
                failure = failure or error
        if failure is None:
            fail("the cluster has no broker that lives. Try again.")
        raise failure

    def of_each_broker(self, path: str, /, query: dict[str, Any] | None = None) -> Iterator[Any]:
        """The answer of every broker that gives one, one after the other."""
        for node_id in self.brokers():
            try:
                answer = self.ask("GET", path, query=query, node_id=node_id)
            except Failure:
                continue
            yield answer

    def why_not_serving(self, node_ids: Iterable[int]) -> dict[int, str | None]:
        """Why brokers do not serve clients, as they say themselves or because they do not answer; None: it serves.

        None also if it is not known: the broker has no HTTP API (Apache Kafka), or one that is not trusted here.
        """
        return of_each(self._why_not_serving, node_ids)

    def _why_not_serving(self, node_id: int) -> str | None:
        from kafka.errors import KafkaError

        try:
            address = broker_setting(self._client, node_id, "http.address")
            if not address:
                return None
            status, _, content = self._send("GET", address, "/health", None, LOOKED_WITHIN_S)
            return str(json.loads(content)["why"]) if status == 503 else None
        except _NotTrustedError:
            return None
        except (KafkaError, _NotReceivedError, ValueError, KeyError, TypeError):
            return "it does not answer"

    def _send(
        self, method: str, address: str, target: str, body: Any, within_s: float = ANSWERS_WITHIN_S
    ) -> tuple[int, Any, bytes]:
        headers = {"User-Agent": client_id(), "Connection": "close", "Barnabas-Cluster": self._cluster_id or ""}
        authorization = self._authorization(address)
        if authorization:
            headers["Authorization"] = authorization
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection(address, min(within_s, CONNECTED_WITHIN_S))
        is_sent = False
        try:
            connection.connect()
            connection.sock.settimeout(within_s)
            is_sent = True
            connection.request(method, target, content, headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        except (OSError, http.client.HTTPException) as error:
            if type(error).__name__ == "SSLCertVerificationError":  # of ssl, which is imported late
                raise _NotTrustedError(
                    f"the certificate of the HTTP API at {address} is not trusted here: {error}. Name a file of "
                    "--command-config that has ssl.truststore.location, as for a listener with TLS."
                ) from None
            why = (
                f"the HTTP API at {address} does not answer: {error or type(error).__name__}. If the broker runs on "
                "another machine, set its http.listeners to an address that this one reaches, and http.token."
            )
            if is_sent and method != "GET":
                fail(f"{why} It may have done what was asked: look before you repeat it.")
            raise _NotReceivedError(why) from None
        finally:
            connection.close()

    def _authorization(self, address: str) -> str | None:
        """The token of the environment, or else the login of the file. A password crosses no network as it is."""
        login = read(self._target.command_config).login
        if self._token:
            return f"Bearer {self._token}"
        is_safe = address.startswith("https://") or is_loopback(address.rpartition(":")[0].strip("[]"))
        return login.of_http() if login is not None and is_safe else None

    def _connection(self, address: str, within_s: float) -> http.client.HTTPConnection:
        host, _, port = address.removeprefix("https://").rpartition(":")
        if not address.startswith("https://"):
            return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=within_s)
        context = tls_of_http(self._target.command_config)
        return http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=within_s, context=context)

    def _fail(self, address: str, status: int, content: bytes, group: str | None) -> None:
        try:
            error = json.loads(content)["error"]
            name, message = str(error["name"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            fail(f"what answers at {address} is no HTTP API of Barnabas: {status} {content[:200]!r}.")
        if name == "GROUP_ID_NOT_FOUND" and group is not None:
            no_group(group)
        if status == 421:
            message += f" The broker has its HTTP API at {address} of its own machine: set its http.listeners to an "
            message += "address that other machines reach, and http.token."
        if status == 401:
            message += (
                f" The command takes the token from the environment variable {TOKEN_VARIABLE}, and the login from "
            )
            message += "the file of --command-config, if the address is https:// or of this machine."
        code = ExitCode.NOTHING_THERE if status == 404 else ExitCode.NOT_VALID if status == 400 else ExitCode.FAILED
        fail(f"{name}: {message}", code)
