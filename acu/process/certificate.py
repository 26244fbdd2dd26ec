"""The TLS certificate and its key: read as one pair, judged, and shown from the next handshake on.

What was judged is what is shown, whatever becomes of the files meanwhile: each is read once, without waiting for a FIFO
and without asking anybody for a passphrase. OpenSSL takes files only, so it gets the pair as files in memory.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from acu.config import NetworkConfig
from acu.config.document import MAX_BYTES, read_regular
from acu.errors import StartRefused

CERTIFICATE = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END ", re.DOTALL)
KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )?PRIVATE KEY-----")
ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE)
UTC_TIME = 0x17  # the two kinds of time in a certificate: of two digits for the year, and of four
EXPLICIT_VERSION = 0xA0


class Pair(Struct, frozen=True):
    """A certificate chain and its key, in PEM, of which the first certificate is valid `since` and `until` these Unix times."""

    certificate: bytes
    key: bytes
    since: float
    until: float

    def doubt(self, now: float) -> str | None:
        """Why clients will not trust it, in a sentence that follows its name; None where its time is right."""
        if now > self.until:
            return f"expired on {_day(self.until)}, and clients refuse it; renew it, and send SIGHUP"
        if now < self.since:
            return f"is valid from {_day(self.since)} on, and clients refuse it until then; look at the clock"
        return None


class Tls:
    """The server's side of TLS, and until when the certificate is valid that it shows. `show` belongs to the loop."""

    def __init__(self, pair: Pair) -> None:
        """Raises ssl.SSLError for a pair that OpenSSL does not take."""
        self.show(pair)

    def show(self, pair: Pair) -> None:
        """Show this one from the next handshake on. One that another Tls took is taken here too, and waits for nothing."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # a new one: OpenSSL keeps a pair for each kind of key
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        with _in_memory(pair.certificate) as certificate, _in_memory(pair.key) as key:
            context.load_cert_chain(certificate, key, password=lambda: b"")
        self._context, self.pair = context, pair

    def context(self) -> ssl.SSLContext:
        """For the next handshake."""
        return self._context


def read_pair(network: NetworkConfig) -> Pair | None:
    """The configured pair, which OpenSSL takes, or None when there is none. Raises StartRefused."""
    if network.tls_cert_file is None or network.tls_key_file is None:
        return None
    certificate, _ = _read("tls_cert_file", network.tls_cert_file)
    key, mode = _read("tls_key_file", network.tls_key_file)
    if mode & 0o007:
        raise StartRefused(
            f"network.tls_key_file: {network.tls_key_file} is open to everybody; run chmod o= {network.tls_key_file}"
        )
    if (flaw := _flaw(certificate, key, network)) is not None:
        raise StartRefused(flaw)
    try:
        pair = Pair(certificate, key, *_validity(certificate))
        Tls(pair)
    except (ssl.SSLError, ValueError, IndexError) as error:
        raise StartRefused(_refused(network, getattr(error, "reason", None))) from error
    return pair


def _read(field: str, path: str) -> tuple[bytes, int]:
    try:
        content, mode = read_regular(Path(path))
    except OSError as error:
        raise StartRefused(f"network.{field}: {path} cannot be read: {error.strerror}; name a PEM file") from error
    if len(content) > MAX_BYTES:
        raise StartRefused(f"network.{field}: {path} is larger than {MAX_BYTES} bytes; name a PEM file")
    return content, mode


def _flaw(certificate: bytes, key: bytes, network: NetworkConfig) -> str | None:
    """What is wrong with the files by their outer form, of which OpenSSL would say little."""
    cert_file, key_file = network.tls_cert_file, network.tls_key_file
    if not CERTIFICATE.search(certificate):
        if KEY.search(certificate) and CERTIFICATE.search(key):
            return f"network.tls_cert_file: {cert_file} has the key and {key_file} the certificate; change them over"
        return f"network.tls_cert_file: {cert_file} has no certificate in PEM (-----BEGIN CERTIFICATE-----); replace it"
    if ENCRYPTED.search(key):
        return (
            f"network.tls_key_file: {key_file} has a passphrase, which nobody is there to type; write the key without one: "
            f"openssl pkey -in {key_file} -out NEW"
        )
    if not KEY.search(key):
        return f"network.tls_key_file: {key_file} has no private key in PEM (-----BEGIN PRIVATE KEY-----); replace it"
    return None


def _refused(network: NetworkConfig, reason: str | None) -> str:
    cert_file, key_file = network.tls_cert_file, network.tls_key_file
    if reason == "KEY_VALUES_MISMATCH":
        return (
            f"network.tls_key_file: {key_file} is not the key of the first certificate in {cert_file}; replace both with "
            "a pair, the server's own certificate before those of its authority"
        )
    why = f" ({reason})" if reason else ""
    return f"network.tls_cert_file: {cert_file} and {key_file} are damaged, or of a kind that is not taken{why}; replace them"


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """The path of a file with `content` that is on no disk, and gone afterwards."""
    file = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.write(content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def _validity(pem: bytes) -> tuple[float, float]:
    """Since and until when the first certificate is valid. Raises ValueError or IndexError for what is none.

    Certificate > TBSCertificate > version?, serialNumber, signature, issuer, validity (RFC 5280, 4.1).
    """
    block = CERTIFICATE.search(pem)
    if block is None:
        raise ValueError("no certificate")
    try:
        der = base64.b64decode(b"".join(block[1].split()), validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error
    fields = _parts(_parts(_parts(der)[0][1])[0][1])
    validity = fields[4 if fields[0][0] == EXPLICIT_VERSION else 3][1]
    since, until = (_time(tag, text.decode("ascii")) for tag, text in _parts(validity))
    return since, until


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """(tag, content) of each value in DER."""
    parts, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            more = length & 0x7F
            length, at = int.from_bytes(der[at : at + more], "big"), at + more
        parts.append((tag, der[at : at + length]))
        at += length
    return parts


def _time(tag: int, text: str) -> float:
    if tag == UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()


def _day(time: float) -> str:
    return f"{dt.datetime.fromtimestamp(time, dt.UTC):%Y-%m-%d %H:%M} UTC"
