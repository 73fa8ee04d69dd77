"""Makes OpenSSL's contexts: a key and its certificates, whom to trust, which versions and cipher suites."""

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.tls import TlsError

VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_OFF = {"TLSv1.1": ssl.OP_NO_TLSv1_1, "TLSv1.2": ssl.OP_NO_TLSv1_2}
SUITES_OF_TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
HANDSHAKE_STEPS_MAX = 10
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Keys(NamedTuple):
    """A private key, the certificate that goes with it and its chain, and the certificates to trust; all PEM."""

    key: bytes | None = None
    key_password: str | None = None
    chain: bytes = b""
    trusted: str | None = None  # None: those of the operating system

    def __repr__(self) -> str:
        return "Keys(…)"


def server_context(
    keys: Keys, client_auth: str, protocols: Sequence[str], cipher_suites: Sequence[str]
) -> ssl.SSLContext:
    """For a listener. `client_auth` is none, requested or required. TlsError."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, keys, protocols, cipher_suites)
    if keys.key is None:
        raise TlsError("there is no private key with a certificate")
    context.verify_mode = CLIENT_AUTH[client_auth]
    if client_auth != "none":
        if keys.trusted is None:
            raise TlsError("clients show certificates, and there are none to trust (ssl.truststore.location)")
        _trust(context, keys.trusted)
        # Each connection shows its certificate anew, so that one that is over is refused. A session of TLS 1.2 goes on
        # all the same: tls.py looks at the end of its certificate.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def client_context(
    keys: Keys, protocols: Sequence[str], cipher_suites: Sequence[str], *, checks_host: bool = True
) -> ssl.SSLContext:
    """For connections to a server. Its certificate is checked always, its host name if `checks_host`. TlsError."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, keys, protocols, cipher_suites)
    context.check_hostname = checks_host
    if keys.trusted is None:
        context.load_default_certs()
    else:
        _trust(context, keys.trusted)
    return context


def check_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """TlsError if a client and a server with these contexts would not take each other, whatever their hosts are."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    checked, client.check_hostname = client.check_hostname, False
    try:
        waiting = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    finally:
        client.check_hostname = checked
    for _ in range(HANDSHAKE_STEPS_MAX):
        for side in [*waiting]:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise TlsError(error.verify_message) from None
            except ssl.SSLError as error:
                raise TlsError(_reason(error)) from None
            waiting.remove(side)


def _context(kind: int, keys: Keys, protocols: Sequence[str], cipher_suites: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a certificate that is trusted is, whoever has signed it
    enabled = [name for name in VERSIONS if name in protocols]
    older = openssl_suites(cipher_suites)
    if cipher_suites:
        if not any(suite in SUITES_OF_TLS_1_3 for suite in cipher_suites):
            enabled = [name for name in enabled if name != "TLSv1.3"]
        if not older:
            enabled = [name for name in enabled if name == "TLSv1.3"]
    if not enabled:
        raise TlsError("no version of TLS is enabled that has one of the cipher suites")
    context.minimum_version, context.maximum_version = VERSIONS[enabled[0]], VERSIONS[enabled[-1]]
    for name, option in _OFF.items():  # one between two that are enabled
        if name not in enabled and context.minimum_version < VERSIONS[name] < context.maximum_version:
            context.options |= option
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise TlsError(f"none of the cipher suites is known here: {', '.join(cipher_suites)}") from None
    if keys.key is not None:
        _load(context, keys)
    return context


def openssl_suites(names: Sequence[str]) -> list[str]:
    """OpenSSL's names of cipher suites before TLS 1.3, which Java names as the standard does."""
    found = []
    for name in names:
        words, _, rest = name.removeprefix("TLS_").partition("_WITH_")
        if name in SUITES_OF_TLS_1_3 or not rest:
            continue
        exchange = "" if words == "RSA" else words.replace("_", "-") + "-"
        cipher = rest.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
        cipher = cipher.removesuffix("_SHA256") if "POLY1305" in cipher else cipher
        found.append(exchange + cipher.replace("_", "-"))
    return found


def _trust(context: ssl.SSLContext, trusted: str) -> None:
    try:
        context.load_verify_locations(cadata=trusted)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"the certificates to trust cannot be read: {_reason(error)}") from None


def _load(context: ssl.SSLContext, keys: Keys) -> None:
    """OpenSSL reads keys from files only."""
    password = keys.key_password or ""  # never None: OpenSSL would ask a person for it
    with _private_file(keys.chain + b"\n" + (keys.key or b"")) as path:
        try:
            context.load_cert_chain(path, password=password)
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(f"the private key or its certificate cannot be used: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or "it has no form that OpenSSL knows, or the password is wrong"
    known = {"KEY_VALUES_MISMATCH": "the key is of another certificate", "BAD_DECRYPT": "the password is wrong"}
    return known.get(reason, reason.lower().replace("_", " ") if reason.isupper() else reason)


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """A file for the time of the block, in memory where the system has that, that nobody else may read."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name
