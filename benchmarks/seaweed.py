"""The real SeaweedFS, with its S3 face, as a child of this process. The exercises use it, and so do the tests.

One process plays master, volume server, filer and gateway. Each of them listens on a port of its own, and for gRPC on that
port + 10,000. `kill` is SIGKILL: nothing is said goodbye to, and the folder stays as it was at that moment; `start` brings
the server back on the same ports over the same folder. The ports lie below those that the system gives to clients, and are
looked for from a place that depends on the process: nobody is likely to take them while the server is dead.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.ending import tied
from benchmarks.report import NotMeasured

BUCKET = "acu"
ACCESS_KEY = "acukey"
SECRET_KEY = "acusecret0123456789"
_ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]
_IDENTITY = {"name": "acu", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "actions": _ACTIONS}
_GRPC = 10_000
_PARTS = ("master", "volume", "filer", "s3")
_FIRST_PORT, _LAST_PORT = 11_000, 22_000
_SECONDS_TO_START = 60


class Seaweed:
    """A server whose data lie in `folder`. `ends_with_us`: it ends, at the latest, with the thread that started it."""

    def __init__(self, folder: Path, *, ends_with_us: bool = False) -> None:
        self._folder = folder
        self._ends_with_us = ends_with_us
        self._ports = dict(zip(_PARTS, _free_ports(len(_PARTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True)
        (folder / "security.toml").write_text(
            '[s3.sse]\nkey = "a secret of the tests"\n'
        )  # AES256 works, aws:kms does not
        (folder / "s3.json").write_text(json.dumps({"identities": [_IDENTITY]}))

    @property
    def endpoint(self) -> str:
        """Where S3 is spoken."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def data(self) -> Path:
        """Where its volumes lie."""
        return self._folder / "data"

    def start(self) -> None:
        """Start, and wait until it serves. Raises NotMeasured."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start, and return at once. Raises NotMeasured where there is no `weed`."""
        weed = Path(sys.executable).with_name("weed")
        with (self._folder / "log").open("ab") as log:
            try:
                command = [str(weed), *self._arguments()]
                command = tied(command) if self._ends_with_us else command
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
            except OSError as error:
                raise NotMeasured(f"{weed} cannot be run ({error}): install what the tests need") from error

    def wait(self) -> None:
        """Wait until it serves. Raises NotMeasured, and then it is gone."""
        process, deadline = self._process, time.monotonic() + _SECONDS_TO_START
        while not self._is_ready():
            if process is None or process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise NotMeasured(f"weed did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """End it at once (SIGKILL), and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            for part, port in self._ports.items():
                for name in (f"{part}-{port}", f"{part}-grpc-{port + _GRPC}"):
                    Path(f"/tmp/seaweedfs-{name}.sock").unlink(missing_ok=True)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports["s3"], timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _arguments(self) -> list[str]:
        ports = self._ports
        return [
            "server",
            f"-dir={self.data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-master.port={ports['master']}",
            "-master.volumeSizeLimitMB=64",
            "-master.volumePreallocate=false",
            "-master.telemetry=false",
            "-master.electionTimeout=1s",  # a server that is started again elects itself, after one or two of these
            f"-volume.port={ports['volume']}",
            "-volume.max=100",
            "-volume.preStopSeconds=1",
            "-volume.minFreeSpacePercent=1",
            "-filer",
            f"-filer.port={ports['filer']}",
            "-s3",
            f"-s3.port={ports['s3']}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={self._folder / 's3.json'}",
        ]


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and whose gRPC ports are."""
    held: list[socket.socket] = []
    ports: list[int] = []
    try:
        span = _LAST_PORT - _FIRST_PORT
        for at in range(span):
            port = _FIRST_PORT + (os.getpid() * 64 + at) % span
            if len(ports) == count:
                break
            pair = [socket.socket(), socket.socket()]
            held += pair
            try:
                for one, number in zip(pair, (port, port + _GRPC), strict=True):
                    one.bind(("127.0.0.1", number))
            except OSError:
                continue
            ports.append(port)
    finally:
        for one in held:
            one.close()
    return ports
