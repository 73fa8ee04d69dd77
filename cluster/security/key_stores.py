"""Key stores and trust stores as Kafka's settings name them: PEM, PKCS12 and JKS. Pure: bytes in, PEM out.

PKCS12 is read by `cryptography`, which is imported when such a file is read: it is the extra `keystores`. JKS is read
by `java_key_store.py`. A file says itself which of the two it is, as Java's key stores do since Java 9.
"""

import base64
import re
import textwrap
from collections.abc import Iterable
from ssl import DER_cert_to_PEM_cert

from barnabas.cluster.security import java_key_store
from barnabas.runtime.tls import TlsError
from barnabas.runtime.tls_context import Keys

PEM = "PEM"
EXTRA = "pip install 'barnabas[keystores]'"
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]+-----")
_JCEKS_BEGIN = b"\xce\xce\xce\xce"


def read_keys(data: bytes, store_type: str, store_password: str | None, key_password: str | None) -> Keys:
    """A private key with its chain. TlsError."""
    if store_type.upper() == PEM:
        return pem_keys(data.decode("ascii", "replace"), None, key_password)
    return _of_java(data, store_password, key_password)


def read_trusted(data: bytes, store_type: str, store_password: str | None) -> str:
    """The certificates of a trust store, PEM. TlsError."""
    if store_type.upper() == PEM:
        return pem_certificates(data.decode("ascii", "replace"))
    trusted = _of_java(data, store_password, None, only_trusted=True).trusted
    if not trusted:
        raise TlsError("it has no certificate to trust")
    return trusted


# ---------------------------------------------------------------------- PEM


def pem_keys(text: str, chain: str | None, key_password: str | None) -> Keys:
    """A key and its chain, in one text or in two. They may stand in one line, as in a file of settings. TlsError."""
    keys = [block for kind, block in _blocks(text) if kind.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise TlsError(f"it has {len(keys) or 'no'} PEM block{'s' if len(keys) > 1 else ''} with a private key")
    if "ENCRYPTED" in keys[0] and not key_password:
        raise TlsError("its private key is encrypted, and there is no password for it (ssl.key.password)")
    return Keys(keys[0].encode(), key_password, pem_certificates(text if chain is None else chain).encode())


def pem_certificates(text: str) -> str:
    """All certificates of a text. TlsError: there are none."""
    found = [block for kind, block in _blocks(text) if kind in ("CERTIFICATE", "X509 CERTIFICATE")]
    if not found:
        raise TlsError("it has no PEM block with a certificate")
    return "".join(found)


def _blocks(text: str) -> list[tuple[str, str]]:
    found = []
    for kind, content in _BLOCK.findall(text):
        if ":" in content:  # headers of an old encrypted key: its lines count
            lines = [line.strip() for line in content.strip().splitlines()]
        else:
            lines = textwrap.wrap("".join(content.split()), 64)
        found.append((kind, _block(kind, lines)))
    if _BEGIN.search(_BLOCK.sub("", text)):
        raise TlsError("its last PEM block has no end: the file is cut off, or still being written")
    return found


def _block(kind: str, lines: Iterable[str]) -> str:
    return "\n".join((f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""))


# ---------------------------------------------------------------------- Java's


def _of_java(data: bytes, password: str | None, key_password: str | None, *, only_trusted: bool = False) -> Keys:
    if data[:4] == java_key_store.MAGIC:
        return _jks(data, password, key_password, only_trusted)
    if data[:4] == _JCEKS_BEGIN:
        raise TlsError(
            "it is JCEKS, which is not read here. Make it PKCS12: keytool -importkeystore -srckeystore FILE "
            "-destkeystore FILE.p12 -deststoretype PKCS12"
        )
    if data[:1] == b"\x30":
        return _pkcs12(data, password, only_trusted)
    what = "it looks like PEM: set its type to PEM" if b"-----BEGIN " in data else "it is neither PKCS12 nor JKS"
    raise TlsError(what)


def _pkcs12(data: bytes, password: str | None, only_trusted: bool) -> Keys:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise TlsError(f"it is PKCS12, for which `cryptography` is missing: {EXTRA}") from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except Exception:  # cryptography has many words for it, and some show what was read
        what = "the password is wrong" if password else "there is no password for it (….password)"
        raise TlsError(f"it is PKCS12 and cannot be read: {what}, or the file is damaged") from None
    der = serialization.Encoding.DER
    others = "".join(DER_cert_to_PEM_cert(each.certificate.public_bytes(der)) for each in store.additional_certs)
    own = "" if store.cert is None else DER_cert_to_PEM_cert(store.cert.certificate.public_bytes(der))
    if only_trusted:
        return Keys(trusted=own + others)
    if store.key is None or not own:
        raise TlsError("it has no private key with a certificate")
    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Keys(key, None, (own + others).encode())


def _jks(data: bytes, password: str | None, key_password: str | None, only_trusted: bool) -> Keys:
    try:
        store = java_key_store.read(data, password)
        if only_trusted:
            return Keys(trusted="".join(map(DER_cert_to_PEM_cert, store.trusted)))
        if len(store.private_keys) != 1:
            raise TlsError(f"it has {len(store.private_keys)} private keys, and one is needed")
        [entry] = store.private_keys
        der = entry.decrypted(key_password or password or "")
    except java_key_store.DamagedError as error:
        raise TlsError(f"it is JKS and cannot be read: a password is wrong, or the file is damaged ({error})") from None
    key = _block("PRIVATE KEY", textwrap.wrap(base64.b64encode(der).decode(), 64))
    return Keys(key.encode(), None, "".join(map(DER_cert_to_PEM_cert, entry.chain)).encode())
