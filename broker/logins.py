"""Who may log in at the listeners of a broker: users of JAAS lines (PLAIN), and those that the tree keeps (SCRAM)."""

from collections.abc import Callable
from functools import partial

from barnabas.cluster.security.credentials import Credentials
from barnabas.cluster.security.mechanism import ServerSide
from barnabas.cluster.security.plain import PLAIN, PlainServer
from barnabas.cluster.security.scram import NONCE_BYTES, ScramServer
from barnabas.config import sasl
from barnabas.config.broker import BrokerConfig
from barnabas.runtime.ports import Env

SECRET_BYTES = 32


class ListenerLogins:
    """The logins of one listener, by its settings as they are now."""

    def __init__(self, env: Env, config: BrokerConfig, listener: str, credentials: Credentials, secret: bytes) -> None:
        self.now_ms = env.clock.monotonic_ms
        self.on_failure: Callable[[str, str], None] = lambda client_host, why: None  # called with each failure
        self._env = env
        self._config = config
        self._listener = listener
        self._credentials = credentials
        self._secret = secret

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Those that are enabled."""
        return sasl.mechanisms(self._config, self._listener)

    def after_delay(self, answer: Callable[[], None]) -> None:
        """Call `answer` when the answer to a login that failed may be sent."""
        self._env.clock.call_later(self._config.connection_failed_authentication_delay_ms, answer)

    @property
    def bytes_max(self) -> int:
        """Of a request before the login is complete."""
        return self._config.sasl_server_max_receive_size

    def session_lifetime_ms(self, mechanism: str) -> int:
        """How long a login counts; 0: as long as the connection."""
        return sasl.session_lifetime_ms(self._config, self._listener, mechanism)

    def server(self, mechanism: str) -> ServerSide:
        """The broker's side of a new login."""
        if mechanism == PLAIN:
            line = sasl.jaas_line(self._config, self._listener, mechanism)
            return PlainServer({} if line is None else line.passwords)
        nonce = self._env.secret_bytes(NONCE_BYTES)
        return ScramServer(mechanism, self._credentials.of, self._secret, nonce)


class Logins:
    """The listeners of a broker whose clients log in."""

    def __init__(self, env: Env, config: BrokerConfig, credentials: Credentials) -> None:
        make = partial(ListenerLogins, env, config, credentials=credentials, secret=env.secret_bytes(SECRET_BYTES))
        names = [endpoint.name for endpoint in config.endpoints if sasl.has_sasl(config, endpoint.name)]
        self.by_listener = {name: make(listener=name) for name in names}
