"""Certificates for tests."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def certificate_for(host: str, directory: Path) -> tuple[Path, Path]:
    """Writes a self-signed certificate for the name or IP address, and its key, and returns where they are."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "switchyard-test")])
    now = datetime.now(UTC).replace(tzinfo=None)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - timedelta(hours=1), now + timedelta(days=1)
    )
    for extension in (
        x509.SubjectAlternativeName([_general_name(host)]),
        x509.BasicConstraints(ca=False, path_length=None),
    ):
        builder = builder.add_extension(extension, critical=False)
    certificate_path, key_path = directory / "tls.crt", directory / "tls.key"
    certificate_path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate_path, key_path


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The settings of a TLS server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
