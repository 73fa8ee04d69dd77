"""How a broker logs in to another, if the listener of the brokers has SASL. Pure: frames in, frames out."""

from functools import partial

from barnabas.cluster.security.mechanism import AuthenticationError, ClientSide, LoginError
from barnabas.cluster.security.plain import PLAIN, PlainClient
from barnabas.cluster.security.scram import NONCE_BYTES, ScramClient
from barnabas.config import sasl
from barnabas.config.broker import BrokerConfig
from barnabas.config.oauth import OAUTHBEARER
from barnabas.config.settings import ConfigError
from barnabas.protocol import frames
from barnabas.protocol.message import Message
from barnabas.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from barnabas.runtime.ports import Env, read_file

HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2


class BrokerLogin:
    """One login. Its requests are sent one after the other, before all others of the connection."""

    def __init__(self, side: ClientSide, client_id: str) -> None:
        self.session_lifetime_ms = 0  # known when it is complete; 0: as long as the connection
        self._side = side
        self._client_id = client_id
        self._sent = 0
        self._has_begun = False

    def first_frame(self) -> bytes:
        return self._frame(SaslHandshakeRequest(mechanism=self._side.mechanism), HANDSHAKE_VERSION)

    def step(self, frame: bytearray) -> bytes | None:
        """What is sent after this answer; None: the login is complete.

        AuthenticationError: the other broker refuses it. ProtocolError: the answer cannot be read.
        """
        if not self._has_begun:
            _, shaken = frames.decode_response(SaslHandshakeRequest.API_KEY, HANDSHAKE_VERSION, frame)
            assert isinstance(shaken, SaslHandshakeResponse)
            if shaken.error_code:
                enabled = ", ".join(shaken.mechanisms) or "none"
                raise AuthenticationError(f"it has the SASL mechanisms {enabled}, and not {self._side.mechanism}")
            self._has_begun = True
            return self._token(self._side.first())
        _, answer = frames.decode_response(SaslAuthenticateRequest.API_KEY, AUTHENTICATE_VERSION, frame)
        assert isinstance(answer, SaslAuthenticateResponse)
        if answer.error_code:
            raise AuthenticationError(answer.error_message or "it refuses the login")
        token = self._side.step(bytes(answer.auth_bytes))
        if token is None:
            self.session_lifetime_ms = answer.session_lifetime_ms
            return None
        return self._token(token)

    def _token(self, token: bytes) -> bytes:
        return self._frame(SaslAuthenticateRequest(auth_bytes=token), AUTHENTICATE_VERSION)

    def _frame(self, request: Message, version: int) -> bytes:
        self._sent += 1
        return frames.encode_request(request.API_KEY, version, self._sent, self._client_id, request)


def login_of(env: Env, config: BrokerConfig, client_id: str) -> BrokerLogin | None:
    """A login by the settings of the brokers' listener; None: it has no SASL.

    ConfigError: the settings do not say how.
    """
    listener = config.inter_broker_listener
    if not sasl.has_sasl(config, listener):
        return None
    mechanism = config.sasl_mechanism_inter_broker_protocol
    key = "sasl.mechanism.inter.broker.protocol"
    if mechanism not in sasl.MECHANISMS:
        message = f"{key}={mechanism}, which is not built: set it to one of {', '.join(sasl.MECHANISMS)}"
        raise ConfigError(message, key=key)
    side = _token_side(env, config, listener) if mechanism == OAUTHBEARER else _password_side(env, config, listener)
    return BrokerLogin(side, client_id)


def _password_side(env: Env, config: BrokerConfig, listener: str) -> ClientSide:
    mechanism = config.sasl_mechanism_inter_broker_protocol
    line = sasl.jaas_line(config, listener, mechanism)
    user = None if line is None else line.options.get("username")
    password = None if line is None else line.options.get("password")
    if not user or not password:
        name = sasl.jaas_key(listener, mechanism)
        raise ConfigError(f"{name} has no username and password for this broker", key=name)
    if mechanism == PLAIN:
        return PlainClient(user, password)
    return ScramClient(mechanism, user, password, env.secret_bytes(NONCE_BYTES))


def _token_side(env: Env, config: BrokerConfig, listener: str) -> ClientSide:
    from barnabas.cluster.security.oauth import OAuthClient  # late: few brokers log in so
    from barnabas.cluster.security.own_tokens import own_token
    from barnabas.runtime.web import BYTES_MAX

    settings, options = sasl.of_oauth(config, listener), sasl.oauth_options(config, listener)
    try:
        read = partial(read_file, env.disk, bytes_max=BYTES_MAX)
        return OAuthClient(own_token(settings, options, env.clock.now_ms(), read))
    except LoginError as error:
        raise ConfigError(str(error), key=sasl.jaas_key(listener, OAUTHBEARER)) from None
