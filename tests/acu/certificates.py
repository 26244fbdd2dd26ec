"""Certificates for the tests that speak TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


def make_certificate(
    folder: Path, password: bytes | None = None, until_hours: int = 1, *, of_rsa: bool = False
) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, valid until so many hours from now, and its key (elliptic, or of RSA)."""
    private = rsa.generate_private_key(65537, 2048) if of_rsa else ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(hours=min(until_hours - 2, -1)))
        .not_valid_after(now + dt.timedelta(hours=until_hours))
        .add_extension(names, critical=False)
        .sign(private, hashes.SHA256())
    )
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    key_file.chmod(0o600)
    return cert_file, key_file
