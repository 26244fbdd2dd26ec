"""acu.process.certificate: what is wrong with a pair is said file by file, nothing waits, and what was judged is shown."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from acu.config import NetworkConfig
from acu.config.document import MAX_BYTES
from acu.errors import StartRefused
from acu.process.certificate import Pair, Tls, read_pair
from tests.acu.certificates import make_certificate


def network(folder: Path) -> NetworkConfig:
    """The files that `make_certificate` makes there."""
    return NetworkConfig(tls_cert_file=str(folder / "cert.pem"), tls_key_file=str(folder / "key.pem"))


def good(folder: Path) -> Pair:
    make_certificate(folder)
    pair = read_pair(network(folder))
    assert pair is not None
    return pair


def another(folder: Path) -> None:
    """The key of one, and the certificate of another."""
    certificate = (folder / "cert.pem").read_bytes()
    make_certificate(folder)
    (folder / "cert.pem").write_bytes(certificate)


def passphrase(folder: Path) -> None:
    make_certificate(folder, password=b"secret")


def old_passphrase(folder: Path) -> None:
    """In the form that OpenSSL wrote before PKCS 8."""
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, encryption)
    (folder / "key.pem").write_bytes(text)


def changed_over(folder: Path) -> None:
    certificate, key = (folder / "cert.pem").read_bytes(), (folder / "key.pem").read_bytes()
    (folder / "cert.pem").write_bytes(key)
    (folder / "key.pem").write_bytes(certificate)


def half(folder: Path) -> None:
    text = (folder / "cert.pem").read_text()
    (folder / "cert.pem").write_text(text[:100] + "\n-----END CERTIFICATE-----\n")


def folder_instead(folder: Path) -> None:
    (folder / "key.pem").unlink()
    (folder / "key.pem").mkdir()


def fifo(folder: Path) -> None:
    (folder / "cert.pem").unlink()
    os.mkfifo(folder / "cert.pem")


def device(folder: Path) -> None:
    (folder / "key.pem").unlink()
    (folder / "key.pem").symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("spoil", "field", "says"),
    [
        (another, "tls_key_file", "is not the key of the first certificate in"),
        (passphrase, "tls_key_file", "has a passphrase, which nobody is there to type"),
        (old_passphrase, "tls_key_file", "has a passphrase, which nobody is there to type"),
        (changed_over, "tls_cert_file", "has the key and .* the certificate; change them over"),
        (half, "tls_cert_file", "are damaged, or of a kind that is not taken"),
        (folder_instead, "tls_key_file", "cannot be read: it is not a regular file"),
        (fifo, "tls_cert_file", "cannot be read: it is not a regular file"),
        (device, "tls_key_file", "cannot be read: it is not a regular file"),
        (lambda folder: (folder / "cert.pem").write_bytes(b""), "tls_cert_file", "has no certificate in PEM"),
        (
            lambda folder: (folder / "key.pem").write_bytes(bytes(range(256))),
            "tls_key_file",
            "has no private key in PEM",
        ),
        (lambda folder: (folder / "cert.pem").unlink(), "tls_cert_file", "cannot be read: No such file"),
        (lambda folder: (folder / "cert.pem").write_bytes(b"x" * (MAX_BYTES + 1)), "tls_cert_file", "is larger than"),
        (lambda folder: (folder / "key.pem").chmod(0o604), "tls_key_file", "is open to everybody; run chmod o="),
    ],
)
def test_what_is_wrong_is_said_of_the_file_that_it_is_wrong_with(
    spoil: Callable[[Path], object], field: str, says: str, tmp_path: Path
) -> None:
    make_certificate(tmp_path)
    spoil(tmp_path)
    with pytest.raises(StartRefused, match=rf"^network\.{field}: {tmp_path}.* {says}") as refused:
        read_pair(network(tmp_path))
    assert "_ssl.c" not in str(refused.value)


def test_without_files_there_is_none() -> None:
    assert read_pair(NetworkConfig()) is None


def test_a_pair_is_shown_as_it_was_judged_whatever_becomes_of_its_files(tmp_path: Path) -> None:
    tls = Tls(good(tmp_path))
    pair = good(tmp_path)
    fifo(tmp_path)
    changed_over_later = tmp_path / "key.pem"
    changed_over_later.unlink()
    before = len(list(Path("/proc/self/fd").iterdir()))
    tls.show(pair)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert asyncio.run(shown(tls)).strip() == pair.certificate.decode().strip()
    assert tls.pair.until == pair.until


@pytest.mark.parametrize("of_rsa", [True, False])
def test_a_pair_with_another_kind_of_key_takes_the_place_of_the_old_one(tmp_path: Path, of_rsa: bool) -> None:
    make_certificate(tmp_path, of_rsa=not of_rsa)
    old = read_pair(network(tmp_path))
    make_certificate(tmp_path, of_rsa=of_rsa)
    new = read_pair(network(tmp_path))
    assert old is not None
    assert new is not None
    tls = Tls(old)
    tls.show(new)
    assert asyncio.run(shown(tls)).strip() == new.certificate.decode().strip()


async def shown(tls: Tls) -> str:
    """The certificate that a client gets."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=tls.context())
    async with server:
        return await asyncio.to_thread(ssl.get_server_certificate, server.sockets[0].getsockname()[:2])


def test_the_time_of_a_certificate_is_read_and_a_wrong_one_is_doubted(tmp_path: Path) -> None:
    pair = good(tmp_path)
    now = time.time()
    assert pair.until - pair.since == 7200
    assert abs(now - 3600 - pair.since) < 60
    assert pair.doubt(now) is None
    assert str(pair.doubt(now + 7200)).startswith("expired on ")
    assert str(pair.doubt(now - 7200)).startswith("is valid from ")
