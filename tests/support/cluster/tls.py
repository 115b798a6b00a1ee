"""The certificate of the lab's Kubernetes API."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def certificate_for(address: str, directory: Path) -> tuple[Path, Path]:
    """Writes a self-signed certificate for the IP address, and its key, and returns where they are."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC).replace(tzinfo=None)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - timedelta(hours=1), now + timedelta(days=1)
    )
    for extension in (
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
        x509.BasicConstraints(ca=True, path_length=None),
    ):
        builder = builder.add_extension(extension, critical=False)
    certificate_path, key_path = directory / "tls.crt", directory / "tls.key"
    certificate_path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate_path, key_path
