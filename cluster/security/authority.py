"""An authority of one's own, and the certificates that it signs. Needs `cryptography` (the extra `keystores`)."""

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 825


class Authority:
    """Signs certificates, from a day before `now_ms` on."""

    def __init__(self, name: str, now_ms: int) -> None:
        self._now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._begin(self._name, self._key, AUTHORITY_DAYS)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = made.sign(self._key, hashes.SHA256())

    def _begin(self, subject: x509.Name, key: Any, days: int) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(self._now - DAY).not_valid_after(self._now + days * DAY)

    @property
    def pem(self) -> str:
        """Its certificate: what others trust."""
        return _pem(self._certificate)

    @property
    def key_pem(self) -> str:
        """Its private key: who has it can make certificates for anybody."""
        return _key_pem(self._key)

    def sign(self, name: str, hosts: Sequence[str] = ()) -> str:
        """A new private key and its certificate, PEM, good for both sides of a connection."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._begin(subject, key, CERTIFICATE_DAYS)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = made.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
        return _key_pem(key) + _pem(made.sign(self._key, hashes.SHA256()))


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: Any) -> str:
    hidden = serialization.NoEncryption()
    found: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    return found.decode()
