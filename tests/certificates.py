"""Authorities and certificates for tests, in all forms of key stores."""

import datetime
import ipaddress
import struct
from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any

from barnabas.cluster.security import java_key_store
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
PASSWORD = "store-secret"


class Certificate:
    """A private key and its certificate."""

    def __init__(self, key: Any, certificate: x509.Certificate, authority: "Authority") -> None:
        self.key = key
        self.certificate = certificate
        self.authority = authority

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def chain_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        hidden: Any = serialization.NoEncryption()
        if password is not None:
            hidden = serialization.BestAvailableEncryption(password.encode())
        form = serialization.PrivateFormat.PKCS8
        return str(self.key.private_bytes(serialization.Encoding.PEM, form, hidden).decode())

    def write_pem(self, path: Path, password: str | None = None) -> str:
        path.write_text(self.key_pem(password) + self.chain_pem)
        return str(path)

    def write_pkcs12(self, path: Path, password: str = PASSWORD) -> str:
        hidden = serialization.BestAvailableEncryption(password.encode())
        chain = [self.authority.certificate]
        path.write_bytes(pkcs12.serialize_key_and_certificates(b"own", self.key, self.certificate, chain, hidden))
        return str(path)

    def write_jks(self, path: Path, password: str = PASSWORD, key_password: str | None = None) -> str:
        form = serialization.PrivateFormat.PKCS8
        der = self.key.private_bytes(serialization.Encoding.DER, form, serialization.NoEncryption())
        chain = [self.der, self.authority.der]
        certificates = b"".join(map(_jks_certificate, chain))
        entry = _jks_protected(der, key_password or password) + struct.pack(">i", len(chain)) + certificates
        path.write_bytes(_jks(java_key_store.PRIVATE_KEY, entry, password))
        return str(path)


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        made = self._begin(self.name, self.key, now - DAY, now + 3650 * DAY)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = made.sign(self.key, hashes.SHA256())

    def _begin(self, subject: x509.Name, key: Any, begin: Any, end: Any) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        return made.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(
        self,
        name: str,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        organization: str | None = None,
        days: int = 30,
    ) -> Certificate:
        """A certificate for hosts. With negative `days` it has ended so many days ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if organization is not None:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        made = self._begin(x509.Name(attributes), key, now - 100 * DAY, now + days * DAY)
        names = [_general(host) for host in hosts]
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Certificate(key, made.sign(self.key, hashes.SHA256()), self)

    def write_pem(self, path: Path) -> str:
        path.write_text(self.pem)
        return str(path)

    def write_pkcs12(self, path: Path, password: str = PASSWORD) -> str:
        hidden = serialization.BestAvailableEncryption(password.encode())
        trusted = pkcs12.PKCS12Certificate(self.certificate, b"authority")
        path.write_bytes(pkcs12.serialize_java_truststore([trusted], hidden))
        return str(path)

    def write_jks(self, path: Path, password: str = PASSWORD) -> str:
        path.write_bytes(_jks(java_key_store.TRUSTED, _jks_certificate(self.der), password))
        return str(path)


def _jks(kind: int, content: bytes, password: str) -> bytes:
    """A store of one entry, version 2, as keytool writes it."""
    data = java_key_store.MAGIC + struct.pack(">iii", 2, 1, kind) + _jks_text("own") + bytes(8) + content
    return data + sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + data).digest()


def _jks_text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _jks_certificate(der: bytes) -> bytes:
    return _jks_text("X.509") + struct.pack(">i", len(der)) + der


def _jks_protected(key: bytes, password: str) -> bytes:
    """A key under Sun's key protector, with a salt of zeros."""
    secret, stream, digest = password.encode("utf-16-be"), b"", bytes(20)
    while len(stream) < len(key):
        digest = sha1(secret + digest).digest()
        stream += digest
    hidden = bytes(20) + bytes(a ^ b for a, b in zip(key, stream)) + sha1(secret + key).digest()
    algorithm = bytes.fromhex("300e060a2b060104012a021101010500")
    content = algorithm + _der(0x04, hidden)
    protected = _der(0x30, content)
    return struct.pack(">i", len(protected)) + protected


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    return bytes((tag, size)) + content if size < 128 else bytes((tag, 0x82)) + struct.pack(">H", size) + content


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def in_one_line(pem: str) -> str:
    """As a PEM stands in a file of settings."""
    return " ".join(pem.split("\n")).strip()
