"""The client under HTTP tools: one origin, checked addresses, and certificates for names."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agentflow.tools.address import Addresses, AddressRefused, Origin
from agentflow.tools.http import GuardedTransport, body, client, resolve
from agentflow.tools.secrets import Secrets


async def test_a_certificate_must_be_for_the_name_and_not_for_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hello(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=str(request.url.host))

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    certificate, key = certified(tmp_path, "api.example.com")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    runner = web.ServerRunner(web.Server(hello))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    for host, answers in (("api.example.com", True), ("other.example.com", False)):
        addresses = Addresses([f"{host}:{port}"], resolve)
        transport = GuardedTransport(Origin("https", host, port), addresses, ssl.create_default_context(), 1000)
        async with client(transport, Secrets({}, ()), 5.0) as http:
            if answers:
                assert (await http.get(f"https://{host}:{port}/")).text == host
            else:
                with pytest.raises(httpx2.ConnectError, match="certificate"):
                    await http.get(f"https://{host}:{port}/")
            with pytest.raises(AddressRefused, match="leads away"):
                await http.get("https://elsewhere.example.com/")
            with pytest.raises(AddressRefused, match="leads away"):
                await http.get(f"https://user:password@{host}:{port}/")
    await runner.cleanup()


async def test_a_secret_is_hidden_wherever_the_blocks_are_cut() -> None:
    secrets = Secrets({}, ["k3y-0f-k1ngs", "k3y-0f"])
    data = b"a k3y-0f-k1ngs b k3y-0f k3y-"
    for cut in range(len(data) + 1):
        for second in range(cut, len(data) + 1):
            blocks = [data[:cut], data[cut:second], data[second:]]
            response = httpx2.Response(200, stream=Blocks(blocks))
            assert b"".join([block async for block in body(response, secrets)]) == b"a [secret] b [secret] k3y-"


class Blocks(httpx2.AsyncByteStream):
    def __init__(self, blocks: list[bytes]) -> None:
        self._blocks = blocks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for block in self._blocks:
            yield block


async def test_the_systems_resolver_knows_this_machine() -> None:
    assert "127.0.0.1" in await resolve("localhost", 80)


def certified(folder: Path, host: str) -> tuple[Path, Path]:
    """A certificate for a host, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key").write_bytes(private)
    return folder / "certificate", folder / "key"
