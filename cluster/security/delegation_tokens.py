"""Delegation tokens (KIP-48, KIP-373): credentials that a user gives out, and that end by themselves.

They are kept in the tree as Kafka 3.9 keeps them. The secret of a token, its HMAC, is in no node: each broker makes it
of the token's id and `delegation.token.secret.key`. Who has both logs in by SCRAM, as the owner. Any broker changes
tokens, by a conditional write, and applies its own change before it answers; the others follow notices.
"""

import base64
import hmac
import logging
from collections.abc import Callable, Iterable

from barnabas.cluster.security.mechanism import TokenCredential
from barnabas.cluster.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramCredential, salted
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.change_notices import ChangeNotices, write_and_notify
from barnabas.cluster.tree.payloads import DelegationToken
from barnabas.cluster.tree.port import (
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Operation,
    Set,
    get_if_there,
    make_if_missing,
)
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import uuids
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Task

logger = logging.getLogger("barnabas.cluster")

CHANGE_TRIES = 10
KEY_CHECK, KEY_CHECK_DIGITS = b"which key", 4
HMAC_BYTES_MAX = 1_000  # of a request; a real one has 64


class DelegationTokens:
    """The tokens of a cluster, as one broker knows them."""

    def __init__(
        self, env: Env, config: BrokerConfig, coordination: Coordination, is_registered: Callable[[], bool]
    ) -> None:
        """`is_registered`: whether this broker is registered in the session that is open now."""
        self._env = env
        self._config = config
        self._coordination = coordination
        self._key = (config.delegation_token_secret_key or "").encode()
        # So short that it does not give the key away to who can try many.
        self._key_check = hmac.digest(self._key, KEY_CHECK, "sha256").hex()[:KEY_CHECK_DIGITS] if self._key else ""
        self._known: dict[str, DelegationToken] = {}  # by id
        self._ids: dict[bytes, str] = {}  # by the hash of the HMAC, so that a search tells nothing of it
        self._credentials: dict[tuple[str, str], ScramCredential] = {}  # by id and mechanism; made when first used
        self._notices = ChangeNotices(
            *(env, coordination, paths.DELEGATION_TOKEN_CHANGES, "changes of delegation tokens"),
            self._apply,
            self._load,
            is_registered,
        )
        self._expiring: Task[str] | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether there are tokens: delegation.token.secret.key is set."""
        return bool(self._key)

    async def start(self) -> None:
        """Read all tokens, then follow their changes. Without a key nothing is done."""
        if not self.is_enabled:
            return
        for path in (paths.DELEGATION_TOKENS, paths.DELEGATION_TOKEN_CHANGES):
            await make_if_missing(self._coordination, path)
        await self._notices.begin()
        await self._load()
        self._tell_of_another_key()
        self._notices.follow()
        interval_ms = self._config.delegation_token_expiry_check_interval_ms
        self._expiring = self._env.upkeep.every(
            "delegation tokens", lambda: interval_ms, lambda: [*self._known], self._remove_if_expired
        )

    def _tell_of_another_key(self) -> None:
        others = [each for each in self._known.values() if each.key_check not in ("", self._key_check)]
        if others:
            logger.warning(
                "%s made by another delegation.token.secret.key than this broker has now, and nobody can log in by %s "
                "here. All brokers need the same key. Set the former one again, or let their owners make new ones",
                "1 delegation token was" if len(others) == 1 else f"{len(others):,} delegation tokens were",
                "it" if len(others) == 1 else "them",
            )

    def stop(self) -> None:
        self._notices.stop()
        if self._expiring is not None:
            self._expiring.stop()

    # ------------------------------------------------------------------ what is known

    def hmac_of(self, token_id: str) -> bytes:
        """The secret of a token."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def credential_of(self, token_id: str, mechanism: str) -> TokenCredential | None:
        """By what somebody logs in with a token; None: there is no such token, or it has expired."""
        token = self._known.get(token_id)
        if token is None or self._is_expired(token):
            return None
        key = (token_id, mechanism)
        if key not in self._credentials:
            password, salt = base64.b64encode(self.hmac_of(token_id)).decode(), self._env.secret_bytes(SALT_BYTES)
            salted_password = salted(mechanism, password, salt, ITERATIONS_MIN)
            self._credentials[key] = ScramCredential.of_salted(mechanism, salted_password, salt, ITERATIONS_MIN)
        return TokenCredential(self._credentials[key], token.owner, token.expires_ms)

    def all(self) -> Iterable[DelegationToken]:
        """All tokens, also some that have expired."""
        return list(self._known.values())

    def _is_expired(self, token: DelegationToken) -> bool:
        return min(token.max_ms, token.expires_ms) < self._env.clock.now_ms()

    def _of_hmac(self, secret: bytes) -> DelegationToken | None:
        token_id = self._ids.get(self._hash(secret)) if len(secret) <= HMAC_BYTES_MAX else None
        if token_id is None or not hmac.compare_digest(self.hmac_of(token_id), secret):
            return None
        return self._known.get(token_id)

    def _hash(self, secret: bytes) -> bytes:
        return hmac.digest(self._key, secret, "sha256")

    async def _load(self) -> None:
        there = await self._coordination.children(paths.DELEGATION_TOKENS)
        for token_id in {*there, *self._known}:
            await self._read(token_id)

    async def _apply(self, notice: bytes) -> None:
        await self._read(notice.decode())

    async def _read(self, token_id: str) -> int:
        """Read a token again; the version of its node, -1: there is none."""
        node = await get_if_there(self._coordination, paths.delegation_token(token_id))
        token: DelegationToken | None = None
        try:
            token = None if node is None else payloads.decode_delegation_token(node[0])
        except ValueError as error:
            logger.error("the delegation token %s cannot be read: %s", token_id, error)
        self._put(token_id, token)
        return -1 if node is None else node[1].version

    def _put(self, token_id: str, token: DelegationToken | None) -> None:
        if token is not None:
            self._known[token_id] = token
            self._ids[self._hash(self.hmac_of(token_id))] = token_id
        elif self._known.pop(token_id, None) is not None:
            del self._ids[self._hash(self.hmac_of(token_id))]
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                self._credentials.pop((token_id, mechanism), None)

    # ------------------------------------------------------------------ changes

    async def create(self, owner: str, requester: str, renewers: tuple[str, ...], lifetime_ms: int) -> DelegationToken:
        """A new token, for at most `lifetime_ms` if that is positive. CoordinationError."""
        now_ms, config = self._env.clock.now_ms(), self._config
        longest_ms = config.delegation_token_max_lifetime_ms
        max_ms = now_ms + (min(lifetime_ms, longest_ms) if lifetime_ms > 0 else longest_ms)
        token_id = uuids.to_text(self._env.random_uuid())
        expires_ms = min(max_ms, now_ms + config.delegation_token_expiry_time_ms)
        token = DelegationToken(token_id, owner, requester, renewers, now_ms, max_ms, expires_ms, self._key_check)
        data = payloads.encode_delegation_token(token)
        await self._coordination.multi([Create(paths.delegation_token(token_id), data), _notice(token_id)])
        self._put(token_id, token)
        logger.info("new delegation token %s of %s, asked for by %s", token_id, owner, requester)
        return token

    async def renew(self, principal: str, secret: bytes, period_ms: int) -> tuple[ErrorCode, int]:
        """Let a token count longer; until when. CoordinationError."""
        usual_ms = self._config.delegation_token_expiry_time_ms
        period_ms = min(period_ms, usual_ms) if period_ms > 0 else usual_ms
        return await self._change(principal, secret, period_ms, renews=True)

    async def expire(self, principal: str, secret: bytes, period_ms: int) -> tuple[ErrorCode, int]:
        """Let a token end after a time, which may be longer than before, or now (negative). CoordinationError.

        One that has expired, and is there until the next check, can only be ended.
        """
        return await self._change(principal, secret, None if period_ms < 0 else period_ms, renews=False)

    async def _change(
        self, principal: str, secret: bytes, period_ms: int | None, *, renews: bool
    ) -> tuple[ErrorCode, int]:
        """Let a token end after this time, None: now. What is said first is what Kafka says first."""
        for _ in range(CHANGE_TRIES):
            token = self._of_hmac(secret)
            version = -1 if token is None else await self._read(token.token_id)
            token = self._of_hmac(secret)
            if token is None or version < 0:
                return ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0
            is_foreign = principal != token.owner and principal not in token.renewers
            if is_foreign and not (renews and self._is_expired(token)):
                return ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0
            if period_ms is not None and self._is_expired(token):
                return ErrorCode.DELEGATION_TOKEN_EXPIRED, 0
            path, now_ms = paths.delegation_token(token.token_id), self._env.clock.now_ms()
            changed = None if period_ms is None else token._replace(expires_ms=min(token.max_ms, now_ms + period_ms))
            data = None if changed is None else payloads.encode_delegation_token(changed)
            writing: Operation = Delete(path, version) if data is None else Set(path, data, version)
            if await write_and_notify(self._coordination, [writing], _notice(token.token_id)):
                self._put(token.token_id, changed)
                return ErrorCode.NONE, now_ms if changed is None else changed.expires_ms
        raise CoordinationError(paths.DELEGATION_TOKENS, "a delegation token is being changed by others all the time")

    async def _remove_if_expired(self, token_id: str) -> None:
        token = self._known.get(token_id)
        if token is None or not self._is_expired(token):
            return
        version = await self._read(token_id)
        token = self._known.get(token_id)
        if token is None or not self._is_expired(token):
            return
        removal = Delete(paths.delegation_token(token_id), version)
        if await write_and_notify(self._coordination, [removal], _notice(token_id)):  # else another broker was quicker
            logger.info("the delegation token %s of %s has expired", token_id, token.owner)
        await self._read(token_id)


def _notice(token_id: str) -> Create:
    """Tells the other brokers to read this token again."""
    return Create(paths.DELEGATION_TOKEN_CHANGE_PREFIX, token_id.encode(), sequential=True)
