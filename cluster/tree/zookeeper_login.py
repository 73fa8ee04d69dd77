"""The login at ZooKeeper by SASL (DIGEST-MD5, computed by pure-sasl), whenever kazoo has connected.

kazoo's own login is not used: it asks a ZooKeeper that has no logins for ever, takes a connection that is lost in the
middle for a refusal, and says that it is connected before it has logged in. Here a connection counts after the login.
Who does not log in asks for anything in its place: a ZooKeeper that demands logins takes every connection, and ends it
at the first request. Before that it shows its zookeeper.digest.credentials, which a ZooKeeper may demand as well.

Of several servers, one that refuses does not speak for the others, whose settings may be older: it counts as lost, and
the session goes on at another one. As many refusals as there are servers, without a success in between, count.
"""

from collections.abc import Callable
from typing import Any

from barnabas.cluster.tree.port import CoordinationError
from barnabas.config.jaas import JaasLine
from kazoo.exceptions import AuthFailedError, ConnectionDropped, SessionClosedRequireSaslError, ZookeeperError
from kazoo.protocol.connection import AUTH_XID
from kazoo.protocol.serialization import SASL, Auth, Exists

EXTRA = "pip install 'barnabas[zookeeper-sasl]'"
MESSAGES = 2  # the first is answered by a challenge, the second by a proof that the server knows the password, too
WRONG_ANSWER = "answers a login with what does not belong there: is it ZooKeeper, and does it know the password?"
PLACE = ("zookeeper", "zk-sasl-md5")  # what the server calls itself


class NoLogin:
    """Who does not log in, but may have credentials of the digest scheme; and why it was refused."""

    def __init__(self, hosts: str, digest: str | None = None) -> None:
        self.refusal = ""
        self._hosts = hosts
        self._digest = digest
        self._refusals_left = self._servers = len(hosts.split(","))

    def take_over(self, connection: Any, timeout: float, done: Callable[[], None]) -> None:
        """Have a connection of kazoo log in here. `done` is called, in kazoo's thread, after each login.

        `timeout`: for each answer. kazoo's own is a whole session if there is one server.
        """

        def log_in(_host: str, _timeout: float) -> None:
            try:
                self._exchange(connection, timeout)
            except AuthFailedError as error:
                self._refusals_left -= 1
                if self._refusals_left > 0:
                    raise ConnectionDropped(str(error)) from None
                self.refusal = f"ZooKeeper at {self._hosts} {error}"
                raise
            self._refusals_left = self._servers
            done()

        connection._authenticate_with_sasl = log_in

    def _exchange(self, connection: Any, timeout: float) -> None:
        """Log in. AuthFailedError: it was refused. If the connection is lost, kazoo connects again."""
        self._show_digest(connection, timeout)
        try:
            connection._invoke(timeout, Exists("/", None), xid=1)
        except SessionClosedRequireSaslError:
            raise AuthFailedError("serves nobody without a login: set zookeeper.sasl.jaas.config") from None
        except ZookeeperError:
            pass  # it serves

    def _show_digest(self, connection: Any, timeout: float) -> None:
        if not self._digest:
            return
        try:
            connection._invoke(timeout, Auth(0, "digest", self._digest), xid=AUTH_XID)
        except AuthFailedError:
            raise AuthFailedError("takes no zookeeper.digest.credentials: its digest scheme is off") from None


class ZooKeeperLogin(NoLogin):
    """Who logs in. It has the password: never log that."""

    def __init__(self, hosts: str, line: JaasLine, digest: str | None = None) -> None:
        super().__init__(hosts, digest)
        try:
            from puresasl.client import SASLClient
        except ImportError:
            message = f"zookeeper.sasl.jaas.config is set, and for logins at ZooKeeper pure-sasl is missing: {EXTRA}"
            raise CoordinationError("", message) from None
        self._user = line.options["username"]  # in UTF-8, hashed in ISO 8859-1: it is of ASCII
        self._password = line.options["password"].encode("latin-1")
        self._new_exchange = SASLClient

    def _exchange(self, connection: Any, timeout: float) -> None:
        service, host = PLACE
        exchange = self._new_exchange(host, service, "DIGEST-MD5", username=self._user, password=self._password)
        challenge: bytes | None = None
        for xid in range(1, MESSAGES + 1):
            connection._submit(SASL(_answer(exchange, challenge)), timeout, xid)
            header, buffer, offset = connection._read_header(timeout)
            if header.err:
                raise AuthFailedError(
                    f"refuses the login of {self._user}: set zookeeper.sasl.jaas.config to the username and password "
                    f'that its own JAAS file has (user_{self._user}="…" in the section Server), and start again'
                )
            challenge, _ = SASL.deserialize(buffer, offset)
            if not challenge:
                raise AuthFailedError(
                    "has no logins, and zookeeper.sasl.jaas.config is set: ZooKeeper needs authProvider.1="
                    "org.apache.zookeeper.server.auth.SASLAuthenticationProvider and a JAAS file with a section Server"
                )
        _answer(exchange, challenge)
        if not exchange.complete:
            raise AuthFailedError(WRONG_ANSWER)
        self._show_digest(connection, timeout)


def _answer(exchange: Any, challenge: bytes | None) -> bytes:
    try:
        return exchange.process(challenge) or b""
    except Exception:  # pure-sasl has many words for it
        raise AuthFailedError(WRONG_ANSWER) from None
