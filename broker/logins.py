"""Who may log in at the listeners of a broker: users of JAAS lines (PLAIN), those that the tree keeps (SCRAM), and who
has a token of somebody that the settings name (OAUTHBEARER)."""

import hmac
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from barnabas.cluster.security.credentials import Credentials
from barnabas.cluster.security.delegation_tokens import DelegationTokens
from barnabas.cluster.security.mechanism import AuthenticationError, ServerSide
from barnabas.cluster.security.plain import PLAIN, PlainServer
from barnabas.cluster.security.scram import (
    HASHES,
    ITERATIONS_DEFAULT,
    NONCE_BYTES,
    SALT_BYTES,
    ScramCredential,
    ScramServer,
    salted,
)
from barnabas.config import sasl
from barnabas.config.broker import BrokerConfig
from barnabas.config.oauth import OAUTHBEARER, TokenRules, UnsecuredRules, takes_signed
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import ended
from barnabas.runtime.upkeep import Task

if TYPE_CHECKING:
    from barnabas.cluster.security.oauth import Validate
    from barnabas.cluster.security.signing_keys import SigningKeys

logger = logging.getLogger("barnabas.broker")

SECRET_BYTES = 32
PROOFS_MAX = 1_000
REFUSED = "the user, the password or the token is wrong."
NOBODY = ScramCredential(bytes(SALT_BYTES), b"", b"", ITERATIONS_DEFAULT)


class ListenerLogins:
    """The logins of one listener, by its settings as they are now."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        listener: str,
        credentials: Credentials,
        tokens: DelegationTokens,
        secret: bytes,
    ) -> None:
        self.now_ms = env.clock.monotonic_ms
        self.on_failure: Callable[[str, str], None] = lambda client_host, why: None  # called with each failure
        # Called with who has not logged in again in time, when its connection is closed.
        self.on_end: Callable[[str, str], None] = lambda client_host, who: None
        self.signing_keys: SigningKeys | None = None  # by which tokens are signed; None: there is no such listener
        self._env = env
        self._config = config
        self._listener = listener
        self._credentials = credentials
        self._tokens = tokens
        self._secret = secret

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Those that are enabled."""
        return sasl.mechanisms(self._config, self._listener)

    @property
    def passwords(self) -> Mapping[str, str]:
        """Those of PLAIN's users, if it is enabled."""
        line = sasl.jaas_line(self._config, self._listener, PLAIN) if PLAIN in self.mechanisms else None
        return {} if line is None else line.passwords

    def after_delay(self, answer: Callable[[], None]) -> None:
        """Call `answer` when the answer to a login that failed may be sent."""
        self._env.clock.call_later(self._config.connection_failed_authentication_delay_ms, answer)

    @property
    def bytes_max(self) -> int:
        """Of a request before the login is complete."""
        return self._config.sasl_server_max_receive_size

    def session_lifetime_ms(self, server: ServerSide) -> int | None:
        """How long a login that is complete counts: by the settings, and by its own end; None: as long as the
        connection."""
        by_settings_ms = sasl.session_lifetime_ms(self._config, self._listener, server.mechanism) or None
        if server.expires_ms is None:
            return by_settings_ms
        left_ms = max(0, server.expires_ms - self._env.clock.now_ms())
        return left_ms if by_settings_ms is None else min(left_ms, by_settings_ms)

    def load(self) -> None:
        """Get ready to check tokens. LoginError: the broker cannot."""
        if OAUTHBEARER not in self.mechanisms:
            return
        settings = sasl.of_oauth(self._config, self._listener)
        if takes_signed(settings):
            from barnabas.cluster.security.signing_keys import SigningKeys  # late: few brokers have them

            self.signing_keys = SigningKeys(self._env, self._listener, TokenRules.of(settings))
            self.signing_keys.load()
        else:
            logger.warning(
                "listener %s takes tokens that nobody has signed: everybody can be anybody there. For signed ones set "
                "sasl.oauthbearer.jwks.endpoint.url",
                self._listener,
            )

    def server(self, mechanism: str) -> ServerSide:
        """The broker's side of a new login."""
        if mechanism == PLAIN:
            return PlainServer(self.passwords)
        if mechanism == OAUTHBEARER:
            from barnabas.cluster.security.oauth import OAuthServer

            return OAuthServer(self._validate())
        nonce = self._env.secret_bytes(NONCE_BYTES)
        return ScramServer(mechanism, self._credentials.of, self._secret, nonce, self._tokens.credential_of)

    def _validate(self) -> "Validate":
        if self.signing_keys is not None:
            return self.signing_keys.check
        from barnabas.cluster.security import unsecured_tokens

        rules = UnsecuredRules.of(sasl.oauth_options(self._config, self._listener))
        now_ms = self._env.clock.now_ms
        return lambda token: unsecured_tokens.check(token, rules, now_ms())


def _is_password(mechanism: str, password: str, credential: ScramCredential) -> bool:
    made = salted(mechanism, password, credential.salt, credential.iterations)
    of_password = ScramCredential.of_salted(mechanism, made, credential.salt, credential.iterations)
    return hmac.compare_digest(of_password.stored_key, credential.stored_key)


class Logins:
    """The listeners of a broker whose clients log in."""

    def __init__(self, env: Env, config: BrokerConfig, credentials: Credentials, tokens: DelegationTokens) -> None:
        secret = env.secret_bytes(SECRET_BYTES)
        make = partial(ListenerLogins, env, config, credentials=credentials, tokens=tokens, secret=secret)
        names = [endpoint.name for endpoint in config.endpoints if sasl.has_sasl(config, endpoint.name)]
        self.by_listener = {name: make(listener=name) for name in names}
        self._env = env
        self._credentials = credentials
        self._secret = secret
        self._proofs: set[bytes] = set()  # of passwords that were right, with what was kept of them
        self._refreshing: Task[SigningKeys] | None = None

    @property
    def _signing_keys(self) -> "list[SigningKeys]":
        return [each.signing_keys for each in self.by_listener.values() if each.signing_keys is not None]

    # ------------------------------------------------------------------ without a connection of Kafka's protocol

    @property
    def has_passwords(self) -> bool:
        """Whether somebody may log in by a password."""
        return any(name in each.mechanisms for each in self.by_listener.values() for name in (PLAIN, *HASHES))

    @property
    def has_signed_tokens(self) -> bool:
        """Whether somebody may log in by a token of which a signature is wanted."""
        return bool(self._signing_keys)

    def by_token(self, token: str) -> str:
        """The principal of a signed token. AuthenticationError."""
        why = "there are no keys for tokens"
        for keys in self._signing_keys:
            try:
                return f"User:{keys.check(token).user}"
            except Exception as error:  # TokenError, which only those import who have keys
                why = str(error)
        raise AuthenticationError(REFUSED, f"Bearer: {why}")

    def by_password(self, user: str, password: str) -> Pending[str]:
        """The principal of a user of PLAIN or SCRAM. Fails with AuthenticationError.

        A password of SCRAM takes some milliseconds of a thread the first time, also that of a user who is not there.
        """
        found: Pending[str] = Pending()
        plain = {name: text for each in self.by_listener.values() for name, text in each.passwords.items()}
        known = plain.get(user)
        is_right = hmac.compare_digest(password.encode(), (known or "").encode())
        if known is not None and is_right:
            found.complete(f"User:{user}")
            return found
        names = [name for name in HASHES if any(name in each.mechanisms for each in self.by_listener.values())]
        kept = {name: credential for name in names if (credential := self._credentials.of(user, name)) is not None}
        name, credential = next(iter(kept.items()), (next(iter(HASHES)), NOBODY))
        proof = hmac.digest(self._secret, repr((user, password, credential)).encode(), "sha256")

        def told(is_right: bool) -> None:
            if not is_right or not kept:
                found.fail(AuthenticationError(REFUSED, "Basic: wrong user or password"))
                return
            if len(self._proofs) >= PROOFS_MAX:
                self._proofs.clear()
            self._proofs.add(proof)
            found.complete(f"User:{user}")

        if proof in self._proofs:
            told(True)
        else:
            work = partial(_is_password, name, password, credential)
            checking = self._env.clock.in_thread(work, "passwords")
            checking.on_failure = lambda error: told(False)
            checking.then(told)
        return found

    # ------------------------------------------------------------------ life

    def load(self) -> None:
        """Get ready, before anything else has happened. LoginError: the broker cannot start so."""
        for each in self.by_listener.values():
            each.load()

    async def start(self) -> None:
        """Ask for the keys of tokens, and again from now on. Who does not answer is asked again, and nobody waits."""
        keys = self._signing_keys
        if not keys:
            return
        for asked in [each.ask() for each in keys]:
            await ended(asked)
        from barnabas.cluster.security.signing_keys import LOOKED_AT_EVERY_MS, SigningKeys

        self._refreshing = self._env.upkeep.every(
            "keys of tokens", lambda: LOOKED_AT_EVERY_MS, lambda: self._signing_keys, SigningKeys.refresh
        )

    def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.stop()
