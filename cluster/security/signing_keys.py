"""The keys by which a listener's tokens are signed: read from a file or asked of a server, again and again.

A file is read again when it changes. A server is asked in a thread; when it does not answer, again after a while, and
the keys that were read last stay. A token whose key is not known has the server asked at once, but for that login it is
too late: clients try again.
"""

import logging
from collections.abc import Callable

from barnabas.cluster.security import signed_tokens
from barnabas.cluster.security.mechanism import LoginError
from barnabas.cluster.security.oauth import Token
from barnabas.config.oauth import KEYS_URL, TokenRules, path_of
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env, read_file, stamp_of
from barnabas.runtime.web import BYTES_MAX, WebError, fetch

logger = logging.getLogger("barnabas.cluster")

LOOKED_AT_EVERY_MS = 1_000.0
UNKNOWN_KEY_PAUSE_MS = 10_000.0  # so that clients cannot have the server asked all the time
THREAD = "signing keys"


class SigningKeys:
    """The keys of one listener, and the check of its tokens."""

    def __init__(self, env: Env, listener: str, rules: TokenRules, ask: Callable[[str], bytes] = fetch) -> None:
        self.listener = listener
        self._env = env
        self._rules = rules
        self._ask = ask
        self._path = path_of(rules.keys_url)
        self._keys: list[signed_tokens.Key] = []
        self._stamp: object = None  # what tells whether the file has changed
        self._asking = False
        self._asked_ms = -UNKNOWN_KEY_PAUSE_MS
        self._next_ms = 0.0  # when the server is asked next
        self._backoff_ms = 0.0
        self._is_told = False  # that there is trouble

    # ------------------------------------------------------------------ tokens

    def check(self, token: str) -> Token:
        """What a token says. TokenError: it is refused."""
        try:
            return signed_tokens.check(token, self._keys, self._rules, self._env.clock.now_ms())
        except signed_tokens.UnknownKeyError:
            now_ms = self._env.clock.monotonic_ms()
            if now_ms >= self._asked_ms + UNKNOWN_KEY_PAUSE_MS:
                self._next_ms = now_ms
            raise

    # ------------------------------------------------------------------ keys

    def load(self) -> None:
        """Read the file, if the keys are in one, before anything else has happened. LoginError."""
        if self._path is None:
            return
        try:
            self._stamp = stamp_of(self._env.disk, self._path)
            self._keys = signed_tokens.read_keys(read_file(self._env.disk, self._path, BYTES_MAX))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise LoginError(f"listener {self.listener}: {KEYS_URL}={self._rules.keys_url}: {why}") from None

    def refresh(self) -> None:
        """Look whether there is something to read. What cannot be used is logged once; the former keys stay."""
        if self._path is not None:
            self._read_if_changed(self._path)
        elif not self._asking and self._env.clock.monotonic_ms() >= self._next_ms:
            self.ask()

    def ask(self) -> Pending[None]:
        """Ask the server. Completes when it has answered, or not; nothing is asked of a file."""
        if self._path is not None:
            return Pending.of(None)
        done: Pending[None] = Pending()
        self._asking = True
        self._asked_ms = self._env.clock.monotonic_ms()

        def answered(keys: list[signed_tokens.Key]) -> None:
            self._asking = False
            self._backoff_ms = 0.0
            self._next_ms = self._env.clock.monotonic_ms() + self._rules.refresh_ms
            self._take(keys)
            done.complete(None)

        def failed(error: Exception) -> None:
            self._asking = False
            rules = self._rules
            self._backoff_ms = min(max(2 * self._backoff_ms, rules.retry_backoff_ms), rules.retry_backoff_max_ms)
            self._next_ms = self._env.clock.monotonic_ms() + self._backoff_ms
            self._tell(error if isinstance(error, WebError | ValueError) else type(error).__name__)
            done.complete(None)

        url = self._rules.keys_url
        asking = self._env.clock.in_thread(lambda: signed_tokens.read_keys(self._ask(url)), THREAD)
        asking.on_failure = failed
        asking.then(answered)
        return done

    def _read_if_changed(self, path: str) -> None:
        try:
            stamp = stamp_of(self._env.disk, path)
            if stamp == self._stamp:
                return
            content = read_file(self._env.disk, path, BYTES_MAX)  # if it cannot be read now, it is tried again
            self._stamp = stamp
            self._take(signed_tokens.read_keys(content))
        except (OSError, ValueError) as error:
            self._tell(error)

    def _take(self, keys: list[signed_tokens.Key]) -> None:
        if self._is_told or not self._keys:
            logger.info("listener %s: the keys for tokens of clients were read (%d)", self.listener, len(keys))
        self._is_told = False
        self._keys = keys

    def _tell(self, why: object) -> None:
        if not self._is_told:
            kept = "The keys that were read before stay in use" if self._keys else "Nobody can log in with a token"
            logger.error(
                "listener %s: the keys for tokens of clients cannot be read: %s (%s). %s",
                self.listener,
                why,
                KEYS_URL,
                kept,
            )
        self._is_told = True
