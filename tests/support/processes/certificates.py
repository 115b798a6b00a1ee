"""Certificates for tests."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def self_signed_certificate() -> str:
    """A new certificate in PEM, whose private key is discarded."""
    return certificate("localhost").partition("-----BEGIN PRIVATE KEY-----")[0]


def certificate(host: str) -> str:
    """A new self-signed certificate for `host` and its private key, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC).replace(tzinfo=None)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1)
    ).add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM) + private).decode()
