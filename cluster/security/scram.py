"""SCRAM (RFC 5802) as Kafka has it: what is kept of a password, and both sides of a login. Pure.

A broker keeps salt, number of iterations and two keys, from which nobody can log in. Kafka 3.9 writes them as one text
into the user's node of the tree; so do we. Channel binding is left out, as in Kafka.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable

from barnabas.cluster.security.mechanism import AuthenticationError, ServerSide, TokenCredential, TokenPrincipal
from barnabas.protocol.named_tuple import NamedTuple

ITERATIONS_MIN, ITERATIONS_MAX, ITERATIONS_DEFAULT = 4096, 16384, 4096
SALT_BYTES = NONCE_BYTES = 20
FIRST_BYTES_MAX = 4096  # of a client's first message, which is kept until the second comes
NO_CHANNEL_BINDING = b"n,,"
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_BY_TOKEN = re.compile(rb",tokenauth=true(?:,|$)", re.IGNORECASE)  # an extension: the user is a delegation token's id
NUMBERS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}  # in requests


class ScramCredential(NamedTuple):
    """What is kept of a user's password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def encode(self) -> str:
        """As in the tree."""
        salt, stored, server = (base64.b64encode(each).decode() for each in self[:3])
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def decode(cls, text: str) -> "ScramCredential":
        """From the tree. ValueError: it is none."""
        values = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored, server = (
                base64.b64decode(values[key], validate=True) for key in ("salt", "stored_key", "server_key")
            )
            return cls(salt, stored, server, int(values["iterations"]))
        except KeyError as error:
            raise ValueError(f"a SCRAM credential has no {error.args[0]}") from error

    @classmethod
    def of_salted(cls, mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> "ScramCredential":
        """From the salted password, which a client sends when it makes a user."""
        client_key = _hmac(mechanism, salted_password, b"Client Key")
        stored_key = hashlib.new(HASHES[mechanism], client_key).digest()
        return cls(salt, stored_key, _hmac(mechanism, salted_password, b"Server Key"), iterations)


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password. Takes some milliseconds."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def _hmac(mechanism: str, key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, HASHES[mechanism]).digest()


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def _attributes(message: bytes) -> dict[str, str]:
    """The attributes of a SCRAM message, by their letter."""
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError as error:
        raise AuthenticationError("Invalid SCRAM message") from error
    return {part[0]: part[2:] for part in parts if part[1:2] == "="}


class ScramServer(ServerSide):
    """The broker's side of one login."""

    def __init__(
        self,
        mechanism: str,
        credential_of: Callable[[str, str], ScramCredential | None],
        secret: bytes,
        nonce: bytes,
        token_of: Callable[[str, str], TokenCredential | None] = lambda token_id, mechanism: None,
    ) -> None:
        """`token_of`: the delegation token of an id."""
        self.mechanism = mechanism
        self._credential_of = credential_of
        self._token_of = token_of
        self._token: TokenCredential | None = None
        self._secret = secret  # of this process, for the salt of users who are not there
        self._nonce = base64.b64encode(nonce).decode().rstrip("=")
        self._asked_user = ""
        self._known: ScramCredential | None = None
        self._first = self._server_first = self._gs2 = b""

    @property
    def principal(self) -> str:
        """The user as a principal; the owner of the token, if there is one."""
        return super().principal if self._token is None else TokenPrincipal(self._token.owner)

    def step(self, token: bytes) -> bytes:
        return self._final(token) if self._server_first else self._begin(token)

    def _begin(self, token: bytes) -> bytes:
        if len(token) > FIRST_BYTES_MAX:
            raise AuthenticationError("Invalid SCRAM client first message")
        header, _, rest = token.partition(b",")
        authorization_id, _, bare = rest.partition(b",")
        found = _attributes(bare)
        if header not in (b"n", b"y") or not found.get("n") or not found.get("r"):
            raise AuthenticationError("Invalid SCRAM client first message")
        user = found["n"].replace("=2C", ",").replace("=3D", "=")
        if authorization_id and authorization_id != b"a=" + found["n"].encode():
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._asked_user = user
        if _BY_TOKEN.search(bare):
            self._token = self._token_of(user, self.mechanism)
            self._known = None if self._token is None else self._token.credential
        else:
            self._known = self._credential_of(user, self.mechanism)
        credential = self._known
        # Who is not there gets a salt, too, always the same, and one for each mechanism: nobody can find out who is.
        made_up = hmac.digest(self._secret, f"{self.mechanism},{user}".encode(), "sha256")[:SALT_BYTES]
        salt = made_up if credential is None else credential.salt
        iterations = ITERATIONS_DEFAULT if credential is None else credential.iterations
        self._first = bare
        self._gs2 = header + b"," + authorization_id + b","
        self._nonce = found["r"] + self._nonce
        self._server_first = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}".encode()
        return self._server_first

    def _final(self, token: bytes) -> bytes:
        without_proof, _, proof = token.rpartition(b",p=")
        found = _attributes(without_proof)
        credential = self._known
        failed = AuthenticationError(
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            + self.mechanism
        )
        if found.get("r") != self._nonce or found.get("c") != base64.b64encode(self._gs2).decode():
            raise failed
        auth_message = self._first + b"," + self._server_first + b"," + without_proof
        stored_key = b"\0" * 32 if credential is None else credential.stored_key
        signature = _hmac(self.mechanism, stored_key, auth_message)
        try:
            client_key = _xor(base64.b64decode(proof, validate=True), signature)
        except ValueError:
            raise failed from None
        computed = hashlib.new(HASHES[self.mechanism], client_key).digest()
        if not hmac.compare_digest(computed, stored_key) or credential is None:
            raise failed
        if self._token is not None:
            self.expires_ms = self._token.expires_ms
        self.user = self._asked_user
        return b"v=" + base64.b64encode(_hmac(self.mechanism, credential.server_key, auth_message))


class ScramClient:
    """The other side of one login: a broker that reaches another."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: bytes) -> None:
        self.mechanism = mechanism
        self._password = password
        self._nonce = base64.b64encode(nonce).decode().rstrip("=")
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={self._nonce}".encode()
        self._signature = b""

    def first(self) -> bytes:
        return NO_CHANNEL_BINDING + self._first

    def step(self, token: bytes) -> bytes | None:
        """The answer to the broker's message; None: it was the last. AuthenticationError: this is not the broker."""
        found = _attributes(token)
        if self._signature:
            if not hmac.compare_digest(found.get("v", ""), base64.b64encode(self._signature).decode()):
                raise AuthenticationError("the broker does not know this user's password itself")
            return None
        try:
            salt, iterations = base64.b64decode(found["s"]), int(found["i"])
            nonce = found["r"]
        except (KeyError, ValueError) as error:
            raise AuthenticationError("Invalid SCRAM server first message") from error
        if not nonce.startswith(self._nonce) or not 0 < iterations <= ITERATIONS_MAX:
            raise AuthenticationError("Invalid SCRAM server first message")
        salted_password = salted(self.mechanism, self._password, salt, iterations)
        client_key = _hmac(self.mechanism, salted_password, b"Client Key")
        stored_key = hashlib.new(HASHES[self.mechanism], client_key).digest()
        without_proof = f"c={base64.b64encode(NO_CHANNEL_BINDING).decode()},r={nonce}".encode()
        auth_message = self._first + b"," + token + b"," + without_proof
        proof = _xor(client_key, _hmac(self.mechanism, stored_key, auth_message))
        self._signature = _hmac(self.mechanism, _hmac(self.mechanism, salted_password, b"Server Key"), auth_message)
        return without_proof + b",p=" + base64.b64encode(proof)
