"""Key stores in all their forms, names of certificates as Java writes them, and contexts of OpenSSL."""

import base64
import datetime
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.security import key_stores
from barnabas.cluster.security.distinguished_names import end_of, subject_of
from barnabas.cluster.security.tls import keys_of
from barnabas.config.tls import TlsSettings
from barnabas.runtime.tls import TlsError
from barnabas.runtime.tls_context import Keys, client_context, openssl_suites, server_context
from certificates import PASSWORD, Authority, in_one_line
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID as Oid

PROTOCOLS = ("TLSv1.2", "TLSv1.3")
AUTHORITY = Authority()
OWN = AUTHORITY.sign("broker")


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def settings(**values: str) -> TlsSettings:
    return TlsSettings.of({f"ssl.{name.replace('_', '.')}": text for name, text in values.items()}.get)


def shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """The client's side of a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(to_server, to_client, server_side=True)
    there = client.wrap_bio(to_client, to_server, server_hostname=host)
    left = [there, here]
    for _ in range(10):
        for side in list(left):
            try:
                side.do_handshake()
                left.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not left:
            return there
    raise AssertionError("no end")


@pytest.mark.parametrize("kind", ["PEM", "PKCS12", "JKS"])
def test_each_form_of_key_store_serves_and_is_trusted(kind: str, tmp_path: Path) -> None:
    write = {"PEM": "write_pem", "PKCS12": "write_pkcs12", "JKS": "write_jks"}[kind]
    values = {
        "keystore_type": kind,
        "keystore_location": getattr(OWN, write)(tmp_path / "keys"),
        "truststore_type": kind,
        "truststore_location": getattr(AUTHORITY, write)(tmp_path / "trusted"),
    }
    if kind != "PEM":
        values |= {"keystore_password": PASSWORD, "truststore_password": PASSWORD}
    keys = keys_of(settings(**values), read)
    server = server_context(keys, "required", PROTOCOLS, ())
    assert shake(server, client_context(keys, PROTOCOLS, ())).version() == "TLSv1.3"


def test_a_file_says_itself_whether_it_is_pkcs12_or_jks(tmp_path: Path) -> None:
    """As in Java since version 9: the default type is JKS, and most files are PKCS12."""
    keys = keys_of(settings(keystore_location=OWN.write_pkcs12(tmp_path / "k"), keystore_password=PASSWORD), read)
    assert keys.key is not None


# keytool -genkeypair -alias own -keyalg EC -dname CN=golden -storetype JKS, with the passwords below; and a store that
# trusts its certificate (keytool -importcert).
KEYTOOLS_KEYS = """
/u3+7QAAAAIAAAABAAAAAQADb3duAAABohl9kaYAAAB/MH0wDgYKKwYBBAEqAhEBAQUABGs9ZZk4GUDg0e3Tax/oGgvrkfxyfH/WvaH6flweUn7NQUyJ
F21x/L5AgKalGujrmF9SO1Xi4h5euLLBFcdG79R+9peoWDw7BwZnvXBTfDroiFc+VxZspizGHivoZiusM8PiuMnNyApAWiaYWwAAAAEABVguNTA5AAAB
PzCCATswgeGgAwIBAgIIZ/NEwmZm9aIwCgYIKoZIzj0EAwIwETEPMA0GA1UEAxMGZ29sZGVuMCAXDTI2MTEyNjIwMTMwOVoYDzIxMjYxMTAyMjAxMzA5
WjARMQ8wDQYDVQQDEwZnb2xkZW4wWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAStQtGrAS1pBpjLeh0mPgWADIs+7B9tKdS9G+3hlH6DKN+y/r0KzECi
CaSIUaPgf9LDBdU2Z7aNj5EZdw/iKuLXoyEwHzAdBgNVHQ4EFgQU8od68XQwtM3y+jW+AzdqWc1o+wAwCgYIKoZIzj0EAwIDSQAwRgIhAPT2NkReTfu2
UVEwWQi11EytofQHsVWpidJ6hZo65DtBAiEAwtmkpVZSAq3UpaOIftzN37dirt3zBIBQXF/E4DB90iRUt6n5prnAVUt4V3jp5VW7GuzU8g==
"""
KEYTOOLS_TRUSTED = """
/u3+7QAAAAIAAAABAAAAAgABYQAAAaIZfZOcAAVYLjUwOQAAAT8wggE7MIHhoAMCAQICCGfzRMJmZvWiMAoGCCqGSM49BAMCMBExDzANBgNVBAMTBmdv
bGRlbjAgFw0yNjExMjYyMDEzMDlaGA8yMTI2MTEwMjIwMTMwOVowETEPMA0GA1UEAxMGZ29sZGVuMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAErULR
qwEtaQaYy3odJj4FgAyLPuwfbSnUvRvt4ZR+gyjfsv69CsxAogmkiFGj4H/SwwXVNme2jY+RGXcP4iri16MhMB8wHQYDVR0OBBYEFPKHevF0MLTN8vo1
vgM3alnNaPsAMAoGCCqGSM49BAMCA0kAMEYCIQD09jZEXk37tlFRMFkItdRMraH0B7FVqYnSeoWaOuQ7QQIhAMLZpKVWUgKt1KWjiH7czd+3Yq7d8wSA
UFxfxOAwfdIk4SJcqSJOQk9LMWKiJbszekA02m4=
"""


def test_stores_of_keytool() -> None:
    store = base64.b64decode(KEYTOOLS_KEYS)
    keys = key_stores.read_keys(store, "JKS", "store-secret", "key-secret")
    trusted = key_stores.read_trusted(base64.b64decode(KEYTOOLS_TRUSTED), "JKS", "store-secret")
    assert keys.chain == trusted.encode()
    server_context(keys, "none", PROTOCOLS, ())
    for passwords in (("other", "key-secret"), ("store-secret", "other"), ("store-secret", None)):
        with pytest.raises(TlsError, match="a password is wrong"):
            key_stores.read_keys(store, "JKS", *passwords)


@pytest.mark.parametrize("end", range(4, 500, 31))
def test_a_store_that_was_cut(end: int) -> None:
    with pytest.raises(TlsError, match="the file is damaged"):
        key_stores.read_keys(base64.b64decode(KEYTOOLS_KEYS)[:end], "JKS", None, "key-secret")


def test_half_of_a_pem_file_is_refused_and_not_taken_for_less() -> None:
    """Until 2026-11-30 a trust store that was being written had fewer authorities, and a chain no intermediate ones."""
    both = AUTHORITY.pem + Authority().pem
    for end in (-2, len(both) * 3 // 4, len(AUTHORITY.pem) + 40):
        with pytest.raises(TlsError, match="its last PEM block has no end"):
            key_stores.read_trusted(both[:end].encode(), "PEM", None)
    keys = OWN.key_pem() + OWN.chain_pem + AUTHORITY.pem
    with pytest.raises(TlsError, match="its last PEM block has no end"):
        key_stores.read_keys(keys[: -len(AUTHORITY.pem) // 2].encode(), "PEM", None, None)
    assert key_stores.read_trusted(both.strip().encode(), "PEM", None).count("BEGIN") == 2


def test_a_key_of_a_jks_may_have_a_password_of_its_own(tmp_path: Path) -> None:
    location = OWN.write_jks(tmp_path / "k", key_password="key-secret")
    given = {"keystore_location": location, "keystore_password": PASSWORD}
    keys = keys_of(settings(**given, key_password="key-secret"), read)
    server_context(keys, "none", PROTOCOLS, ())
    with pytest.raises(TlsError, match="a password is wrong"):
        keys_of(settings(**given), read)


def test_pem_stands_in_the_settings_in_one_line_or_several() -> None:
    for form in (str, in_one_line):
        values = settings(
            keystore_type="PEM",
            keystore_key=form(OWN.key_pem("key-secret")),
            keystore_certificate_chain=form(OWN.chain_pem + AUTHORITY.pem),
            key_password="key-secret",
            truststore_type="PEM",
            truststore_certificates=form(AUTHORITY.pem),
        )
        keys = keys_of(values, read)
        shake(server_context(keys, "none", PROTOCOLS, ()), client_context(keys, PROTOCOLS, ()))


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_a_wrong_password_is_said_without_it(kind: str, tmp_path: Path) -> None:
    path = OWN.write_pkcs12(tmp_path / "k") if kind == "PKCS12" else OWN.write_jks(tmp_path / "k")
    with pytest.raises(TlsError, match=rf"ssl\.keystore\.location={path}: it is {kind} and cannot be read") as caught:
        keys_of(settings(keystore_location=path, keystore_password="planted-wrong"), read)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "kind", "told"),
    [
        (b"", "JKS", "neither PKCS12 nor JKS"),
        (b"-----BEGIN CERTIFICATE-----", "PKCS12", "set its type to PEM"),
        (b"nothing", "PEM", "no PEM block with a private key"),
        (OWN.key_pem().encode(), "PEM", "no PEM block with a certificate"),
        (OWN.key_pem().encode() * 2, "PEM", "2 PEM blocks with a private key"),
        ((OWN.key_pem("x") + OWN.chain_pem).encode(), "PEM", "there is no password for it"),
        (b"\xfe\xed\xfe\xed" + bytes(40), "JKS", "the file is damaged"),
        (b"\x30\x82", "PKCS12", "there is no password for it .*, or the file is damaged"),
    ],
)
def test_what_is_no_key_store(content: bytes, kind: str, told: str) -> None:
    with pytest.raises(TlsError, match=told):
        key_stores.read_keys(content, kind, None, None)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(TlsError, match=r"ssl\.keystore\.location=/no/such cannot be read: No such file"):
        keys_of(settings(keystore_location="/no/such"), read)


def test_a_key_of_another_certificate_is_refused() -> None:
    keys = Keys(AUTHORITY.sign("other").key_pem().encode(), None, OWN.chain_pem.encode())
    with pytest.raises(TlsError, match="the key is of another certificate"):
        server_context(keys, "none", PROTOCOLS, ())


OWN_KEYS = Keys(OWN.key_pem().encode(), None, OWN.chain_pem.encode(), AUTHORITY.pem)


@pytest.mark.parametrize(
    ("protocols", "suites", "version", "cipher"),
    [
        (("TLSv1.2",), (), "TLSv1.2", None),
        (("TLSv1.3",), (), "TLSv1.3", None),
        (PROTOCOLS, ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",), "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (PROTOCOLS, ("TLS_AES_256_GCM_SHA384",), "TLSv1.3", None),
        (PROTOCOLS, ("TLS_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"), "TLSv1.3", None),
    ],
)
def test_versions_and_cipher_suites(protocols: Any, suites: Any, version: str, cipher: str | None) -> None:
    done = shake(server_context(OWN_KEYS, "none", protocols, suites), client_context(OWN_KEYS, PROTOCOLS, ()))
    assert done.version() == version
    assert cipher is None or (found := done.cipher()) is None or found[0] == cipher


def test_no_version_is_left() -> None:
    with pytest.raises(TlsError, match="no version of TLS is enabled that has one of the cipher suites"):
        server_context(OWN_KEYS, "none", ("TLSv1.2",), ("TLS_AES_256_GCM_SHA384",))
    with pytest.raises(TlsError, match="none of the cipher suites is known here"):
        server_context(OWN_KEYS, "none", PROTOCOLS, ("TLS_NO_WITH_SUCH",))


def test_names_of_cipher_suites() -> None:
    names = [
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_RSA_WITH_AES_128_CBC_SHA",
        "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
    ]
    found = openssl_suites(names)
    assert found[:2] == ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in found:
        context.set_ciphers(f"{name}:@SECLEVEL=0")  # each is one that OpenSSL knows
        assert name in [cipher["name"] for cipher in context.get_ciphers()]


def named(*parts: Any, end: datetime.datetime = datetime.datetime(2040, 1, 1)) -> bytes:
    """A certificate with this subject, DER."""
    rows = [part if isinstance(part, list) else [part] for part in parts]
    name = x509.Name([x509.RelativeDistinguishedName([x509.NameAttribute(*pair) for pair in row]) for row in rows])
    begin = datetime.datetime(1960, 1, 1)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(AUTHORITY.name).public_key(OWN.key.public_key())
    made = made.serial_number(5).not_valid_before(begin).not_valid_after(end)
    return made.sign(AUTHORITY.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (
            [
                (Oid.COUNTRY_NAME, "DE"),
                (Oid.STATE_OR_PROVINCE_NAME, "Bavaria"),
                (Oid.LOCALITY_NAME, "München"),
                (Oid.ORGANIZATION_NAME, "Acme, Inc."),
                (Oid.ORGANIZATIONAL_UNIT_NAME, 'a+b=c;d<e>f#g"h\\i'),
                (Oid.COMMON_NAME, "alice"),
            ],
            'CN=alice,OU=a\\+b\\=c\\;d\\<e\\>f\\#g\\"h\\\\i,O=Acme\\, Inc.,L=München,ST=Bavaria,C=DE',
        ),
        (
            [
                (Oid.DOMAIN_COMPONENT, "org"),
                (Oid.USER_ID, "u1"),
                (Oid.STREET_ADDRESS, "Road 1"),
                (Oid.EMAIL_ADDRESS, "a@b.c"),
                (Oid.SERIAL_NUMBER, "77"),
                (Oid.GIVEN_NAME, "Äb"),
            ],
            "2.5.4.42=#0c03c38462,2.5.4.5=#13023737,1.2.840.113549.1.9.1=#16056140622e63,STREET=Road 1,UID=u1,DC=org",
        ),
        ([(Oid.COMMON_NAME, " lead  two trail ")], "CN=\\ lead  two trail\\ "),
        ([(Oid.COMMON_NAME, "  two")], "CN=\\ \\ two"),
        ([(Oid.COMMON_NAME, " ")], "CN=\\ "),
        ([(Oid.COMMON_NAME, "#hash")], "CN=\\#hash"),
        (
            [[(Oid.COMMON_NAME, "multi"), (Oid.USER_ID, "id")], (Oid.ORGANIZATION_NAME, "O/o?|é日")],
            "O=O/o?|é日,CN=multi+UID=id",
        ),
        ([], ""),
    ],
)
def test_names_are_those_that_java_writes(parts: Any, shown: str) -> None:
    """What X500Principal.getName() of Java 17 says of the same certificates."""
    assert subject_of(named(*parts)) == shown


@pytest.mark.parametrize("year", [1980, 2040, 2049, 2050, 9999])
def test_when_a_certificate_ends(year: int) -> None:
    end = datetime.datetime(year, 12, 31, 23, 59, 58)
    assert end_of(named(end=end)) == end.replace(tzinfo=datetime.UTC).timestamp() * 1000


@pytest.mark.parametrize(
    "end", [b"39123123+0100", b"3912312359Z  ", b"391331235958Z", b"39123123595\xffZ", b"-91231235958Z"]
)
def test_an_end_that_nobody_can_read_is_none(end: bytes) -> None:
    """Until 2026-11-30 a broker with such a certificate did not start."""
    certificate = named(end=datetime.datetime(2039, 12, 31, 23, 59, 58))
    assert certificate.count(b"391231235958Z") == 1
    assert end_of(certificate.replace(b"391231235958Z", end)) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\x30", b"\x30\x03\x02\x01", OWN.der[:100], OWN.der[:200]],
    ids=["nothing", "no length", "too short", "its begin", "half of it"],
)
@pytest.mark.parametrize("read", [subject_of, end_of])
def test_what_is_no_certificate(read: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ValueError, match="no certificate"):
        read(data)
