"""What the daemon refuses to start on: exit code 2, a line a problem that says what to do, and nothing left."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from acu.terminal.client import Client, Target
from tests.acu.certificates import make_certificate
from tests.acu.running import DaemonFactory, acu, until


def refusal(tmp_path: Path, environ: dict[str, str], document: Mapping[str, Any], *flags: str) -> str:
    """The one line with which `acu serve` refuses a configuration."""
    (problem,) = refusals(tmp_path, environ, document, *flags)
    return problem


def refusals(tmp_path: Path, environ: dict[str, str], document: Mapping[str, Any], *flags: str) -> list[str]:
    """The lines with which `acu serve` refuses a configuration."""
    path = tmp_path / "refused.yaml"
    network = {"bind_addr": "127.0.0.1:0", "unix_socket": str(tmp_path / "refused.sock")}
    sections = dict(document)
    sections["network"] = network | dict(sections.get("network", {}))
    path.write_text(yaml.safe_dump(sections))
    before = sorted(tmp_path.iterdir())
    done = acu("serve", "-c", str(path), *flags, environ=environ)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert sorted(tmp_path.iterdir()) == before, "something is left behind"
    lines = done.stderr.splitlines()
    assert all(line.startswith("acu: ") for line in lines), done.stderr
    return [line.removeprefix("acu: ") for line in lines]


SCRIPTED = ("--engine", "scripted")


def test_a_model_that_is_not_there_names_the_command_that_pulls_it(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    chat, embed = refusals(tmp_path, clean_environ, {})
    assert chat.startswith("models.large.model: ")
    assert "acu models pull smollm2-135m-instruct" in chat
    assert "acu serve --pull" in chat
    assert embed.startswith("models.embed.model: ")


def test_an_unknown_model_is_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    text = refusal(tmp_path, clean_environ, {"models": {"large": {"model": "smolm2-135m-instruct"}}})
    assert text.startswith("models.large.model: ")
    assert "smolm2-135m-instruct" in text


def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    text = refusal(tmp_path, clean_environ, {"daemon": {"drain_timeout": 3}}, *SCRIPTED)
    assert text.startswith("daemon.drain_timeout: unknown key; did you mean drain_timeout_s? (")


def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    models = {"models": {"large": {"model": "any"}}}
    text = refusal(tmp_path, clean_environ, models, *SCRIPTED, "--script", str(tmp_path / "none.yaml"))
    assert "models.large.script" in text
    (tmp_path / "bad.yaml").write_text("answr: x")
    text = refusal(tmp_path, clean_environ, models, *SCRIPTED, "--script", str(tmp_path / "bad.yaml"))
    assert "models.large.script" in text
    assert "answr" in text


def test_a_script_without_the_scripted_engine_is_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    assert "add --engine scripted" in refusal(tmp_path, clean_environ, {}, "--script", "x")


def test_a_regular_file_at_the_sockets_path_is_left_alone(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    text = refusal(tmp_path, clean_environ, {"network": {"unix_socket": str(precious)}}, *SCRIPTED)
    assert "exists and is not a socket" in text
    assert precious.read_text() == "keep"


def test_an_open_address_is_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    text = refusal(tmp_path, clean_environ, {"network": {"bind_addr": "0.0.0.0:0"}}, *SCRIPTED)
    assert text.startswith("network.bind_addr: 0.0.0.0 can be reached from other machines")


def test_keys_that_everybody_can_read_are_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: one, key: sk-one-000000000000}\n")
    keys.chmod(0o644)
    text = refusal(tmp_path, clean_environ, {"network": {"api_keys_file": str(keys)}}, *SCRIPTED)
    assert text.startswith("network.api_keys_file: ")
    assert "chmod" in text


def test_keys_that_are_no_yaml_are_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text('- !!int "zz"')
    keys.chmod(0o600)
    text = refusal(tmp_path, clean_environ, {"network": {"api_keys_file": str(keys)}}, *SCRIPTED)
    assert text.startswith("network.api_keys_file: ")
    assert "near line 1" in text


def test_keys_that_are_missing_are_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    text = refusal(tmp_path, clean_environ, {"network": {"api_keys_file": str(tmp_path / "none")}}, *SCRIPTED)
    assert text.startswith("network.api_keys_file: ")


def test_an_audit_log_that_cannot_be_written_is_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    text = refusal(tmp_path, clean_environ, {"daemon": {"audit_log": str(tmp_path / "no" / "audit")}}, *SCRIPTED)
    assert text.startswith("daemon.audit_log: ")
    text = refusal(tmp_path, clean_environ, {"daemon": {"audit_log": "/dev/full/x"}}, *SCRIPTED)
    assert "Not a directory" in text
    assert "Is a directory" in refusal(tmp_path, clean_environ, {"daemon": {"audit_log": str(tmp_path)}}, *SCRIPTED)
    os.mkfifo(tmp_path / "fifo")  # which nobody reads
    text = refusal(tmp_path, clean_environ, {"daemon": {"audit_log": str(tmp_path / "fifo")}}, *SCRIPTED)
    assert "No such device or address" in text


def test_a_start_that_is_refused_for_something_else_makes_no_audit_log(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    audit = {"daemon": {"audit_log": str(tmp_path / "audit")}}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = refusal(tmp_path, clean_environ, {**audit, "network": {"bind_addr": address}}, *SCRIPTED)
        assert text.startswith(f"network.bind_addr: {address} is in use")
    keys = {"network": {"api_keys_file": str(tmp_path / "none")}}
    assert "api_keys_file" in refusal(tmp_path, clean_environ, {**audit, **keys}, *SCRIPTED)


def test_a_configuration_that_is_a_fifo_is_refused_without_waiting(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    for words in (("serve", "-c"), ("config", "check")):
        done = acu(*words, str(tmp_path / "fifo.yaml"), environ=clean_environ)
        assert done.returncode == 2
        assert done.stderr == f"acu: {tmp_path}/fifo.yaml: cannot be read: it is not a regular file\n"


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    document = {
        "network": {"tls_cert_file": str(tmp_path / "none"), "tls_key_file": str(tmp_path / "none")},
        "daemon": {"audit_log": str(tmp_path / "no" / "audit")},
    }
    fields = [line.partition(":")[0] for line in refusals(tmp_path, clean_environ, document)]
    assert fields == ["network.tls_cert_file", "models.large.model", "models.embed.model", "daemon.audit_log"]


def test_tls_files_that_are_none_are_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    tls = {"network": {"tls_cert_file": str(certificate), "tls_key_file": str(key)}}
    assert "network.tls_cert_file" in refusal(tmp_path, clean_environ, tls, *SCRIPTED)
    certificate.write_text("not a certificate")
    key.write_text("not a key")
    key.chmod(0o600)
    assert "has no certificate in PEM" in refusal(tmp_path, clean_environ, tls, *SCRIPTED)


def test_an_encrypted_key_is_refused_instead_of_asked_for(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    certificate, key = make_certificate(tmp_path, password=b"secret")
    tls = {"network": {"tls_cert_file": str(certificate), "tls_key_file": str(key)}}
    assert "has a passphrase" in refusal(tmp_path, clean_environ, tls, *SCRIPTED)


def test_a_tls_key_that_everybody_can_read_is_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    certificate, key = make_certificate(tmp_path)
    key.chmod(0o644)
    tls = {"network": {"tls_cert_file": str(certificate), "tls_key_file": str(key)}}
    assert "chmod o=" in refusal(tmp_path, clean_environ, tls, *SCRIPTED)


def test_with_keys_and_tls_an_open_address_is_served(tmp_path: Path, daemon: DaemonFactory) -> None:
    certificate, key = make_certificate(tmp_path)
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: one, key: sk-one-000000000000}\n")
    keys.chmod(0o600)
    network = {
        "bind_addr": "0.0.0.0:0",
        "tls_cert_file": str(certificate),
        "tls_key_file": str(key),
        "api_keys_file": str(keys),
    }
    running = daemon({"network": network})
    port = running.url.rpartition(":")[2]
    target = Target(url=f"https://localhost:{port}", api_key="sk-one-000000000000", ca_file=certificate)
    assert Client(target).get("/v1/models")["object"] == "list"
    with socket.create_connection(("127.0.0.1", int(port))) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in plain.recv(100), "without TLS nothing is answered"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", int(port))) as raw, old.wrap_socket(raw) as wrapped:
        assert wrapped.version() in {"TLSv1.2", "TLSv1.3"}


def test_a_renewed_certificate_is_shown_after_a_sighup_and_a_broken_one_is_not(
    tmp_path: Path, daemon: DaemonFactory
) -> None:
    certificate, key = make_certificate(tmp_path)
    files = {"tls_cert_file": str(certificate), "tls_key_file": str(key)}
    running = daemon({"network": {"bind_addr": "127.0.0.1:0", **files}})
    port = int(running.url.rpartition(":")[2])

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", port))

    first = certificate.read_text()
    assert shown() == first
    make_certificate(tmp_path)
    renewed = certificate.read_text()
    assert renewed != first
    running.signal(signal.SIGHUP)
    until(lambda: "reloaded" in running.events(), "the reload")
    line = next(line for line in running.log_lines() if line["event"] == "reloaded")
    assert line["renewed"] == ["the TLS certificate"]
    assert shown() == renewed

    certificate.write_text("no certificate")
    running.signal(signal.SIGHUP)
    until(lambda: "nothing was reloaded" in running.events(), "the refusal")
    assert shown() == renewed


@pytest.mark.skipif(os.geteuid() != 0, reason="making a folder of another user needs root")
def test_a_foreign_folder_in_tmp_is_refused(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    uid = 65_533  # a user for whom nobody has made the folder
    folder = Path(f"/tmp/acu-{uid}")
    folder.mkdir()
    os.chown(folder, 65_532, 65_532)
    environ = {name: value for name, value in clean_environ.items() if name != "XDG_RUNTIME_DIR"}
    program = (
        "import os; from acu.process.sockets import bind_unix; from acu.config import default_socket\n"
        f"os.setuid({uid}); bind_unix(default_socket({{}}), 0o600)"
    )
    folder.chmod(0o777)
    try:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert "belongs to another user (uid 65532)" in done.stderr
        assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()
