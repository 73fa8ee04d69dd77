"""Authorities and certificates for tests, in all forms of key stores."""

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jks
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
        entry = jks.PrivateKeyEntry.new("own", [self.der, self.authority.der], der, "pkcs8")
        entry.encrypt(key_password or password)
        jks.KeyStore.new("jks", [entry]).save(str(path), password)
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
        jks.KeyStore.new("jks", [jks.TrustedCertEntry.new("authority", self.der)]).save(str(path), password)
        return str(path)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def in_one_line(pem: str) -> str:
    """As a PEM stands in a file of settings."""
    return " ".join(pem.split("\n")).strip()


def der_of(pem: str) -> bytes:
    """The bytes of a PEM."""
    return base64.b64decode("".join(line for line in pem.splitlines() if not line.startswith("-")))
