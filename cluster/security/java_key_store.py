"""Java's own format of key stores, JKS: what `keytool -storetype JKS` writes. Pure: bytes in, entries out.

All numbers are big-endian. A store is a magic number, its version (1 or 2), the number of entries, the entries, and a
SHA-1 digest of the password and all that. An entry is its kind (1: a private key with its chain, 2: a certificate to
trust), its alias, when it was made, and the content. A private key is hidden by Sun's key protector: it is added to a
stream of SHA-1 digests of the password, which begins with a salt.
"""

import hmac
import struct
from collections.abc import Iterator
from hashlib import sha1

from barnabas.protocol.named_tuple import NamedTuple

MAGIC = b"\xfe\xed\xfe\xed"
PRIVATE_KEY, TRUSTED = 1, 2
DIGEST_BYTES = 20
_WHITENER = b"Mighty Aphrodite"
_KEY_PROTECTOR = bytes.fromhex("060a2b060104012a02110101")  # the object identifier 1.3.6.1.4.1.42.2.17.1.1, DER
_OCTET_STRING, _SEQUENCE = 0x04, 0x30


class DamagedError(ValueError):
    """The store is damaged, or a password is wrong."""


class PrivateKey(NamedTuple):
    """A private key as the store has it, and its chain of certificates, DER."""

    protected: bytes
    chain: list[bytes]

    def decrypted(self, password: str) -> bytes:
        """The key, PKCS8 in DER. DamagedError: the password is another one."""
        envelope = _value(_SEQUENCE, self.protected)[0]
        algorithm, rest = _value(_SEQUENCE, envelope)
        if not algorithm.startswith(_KEY_PROTECTOR):
            raise DamagedError("the key is protected by another algorithm")
        content = _value(_OCTET_STRING, rest)[0]
        if len(content) < 2 * DIGEST_BYTES:
            raise DamagedError("a key ends too early")
        salt, hidden, digest = content[:DIGEST_BYTES], content[DIGEST_BYTES:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        secret = password.encode("utf-16-be")
        key = _hidden(hidden, secret, salt)
        if not hmac.compare_digest(sha1(secret + key, usedforsecurity=False).digest(), digest):
            raise DamagedError("the password of the key is wrong")
        return key


class JavaKeyStore(NamedTuple):
    """The entries of a store."""

    private_keys: list[PrivateKey]
    trusted: list[bytes]  # certificates, DER


def read(data: bytes, password: str | None) -> JavaKeyStore:
    """A store. Without a password its digest is not looked at, as in Java. DamagedError."""
    if password is not None:
        digest = sha1(password.encode("utf-16-be") + _WHITENER + data[:-DIGEST_BYTES], usedforsecurity=False).digest()
        if not hmac.compare_digest(digest, data[-DIGEST_BYTES:]):
            raise DamagedError("the password is wrong, or the file is damaged")
    reader = _Reader(data[:-DIGEST_BYTES])
    if reader.take(4) != MAGIC:
        raise DamagedError("it does not begin as JKS")
    version = reader.integer()
    if version not in (1, 2):
        raise DamagedError(f"version {version} is not known")
    store = JavaKeyStore([], [])
    for _ in range(reader.integer()):
        kind = reader.integer()
        reader.take(reader.short() + 8)  # the alias, and when it was made
        if kind == PRIVATE_KEY:
            protected = reader.take(reader.integer())
            store.private_keys.append(PrivateKey(protected, list(reader.certificates(version, reader.integer()))))
        elif kind == TRUSTED:
            store.trusted.extend(reader.certificates(version, 1))
        else:
            raise DamagedError(f"an entry of kind {kind}")
    return store


def _hidden(data: bytes, secret: bytes, salt: bytes) -> bytes:
    """Hide or show: both are the same."""
    found, digest = bytearray(), salt
    for begin in range(0, len(data), DIGEST_BYTES):
        digest = sha1(secret + digest, usedforsecurity=False).digest()
        found += bytes(a ^ b for a, b in zip(data[begin : begin + DIGEST_BYTES], digest))
    return bytes(found)


def _value(tag: int, der: bytes) -> tuple[bytes, bytes]:
    """The content of a DER value with this tag, and what comes after it."""
    if len(der) < 2 or der[0] != tag:
        raise DamagedError("a key has not the form that it should have")
    size, begin = der[1], 2
    if size & 0x80:
        begin = 2 + (size & 0x7F)
        size = int.from_bytes(der[2:begin], "big")
    if begin + size > len(der):
        raise DamagedError("a key ends too early")
    return der[begin : begin + size], der[begin + size :]


class _Reader:
    """Takes numbers and bytes off the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if count < 0 or len(found) < count:
            raise DamagedError("it ends too early")
        self._at += count
        return found

    def integer(self) -> int:
        (found,) = struct.unpack(">i", self.take(4))
        return int(found)

    def short(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def certificates(self, version: int, count: int) -> Iterator[bytes]:
        for _ in range(count):
            if version == 2:
                self.take(self.short())  # its kind, which is X.509
            yield self.take(self.integer())
