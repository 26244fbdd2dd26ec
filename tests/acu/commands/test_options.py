"""acu.commands.options: which daemon a command means."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from acu.commands.options import add_target_options, target_of
from acu.config import client_sockets
from acu.errors import ConfigError
from acu.terminal.client import Target


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without a configuration, which is this process's own for the test."""
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    for name in ("ACU_API_KEY", "ACU_CONFIG", "XDG_CONFIG_HOME", "ACU_NETWORK__UNIX_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return environ


def target(*words: str) -> Target:
    """What the words of a command line mean."""
    parser = argparse.ArgumentParser()
    parser.set_defaults(config=None)
    add_target_options(parser)
    return target_of(parser.parse_args(words))


def test_with_nothing_said_a_daemon_is_looked_for_where_it_usually_is(home: dict[str, str]) -> None:
    assert target() == Target(sockets=client_sockets(home))


def test_a_configured_socket_is_the_only_one_and_an_option_beats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "acu.yaml"
    file.write_text("network: {unix_socket: own.sock}\n")
    assert target("-c", str(file)) == Target(sockets=(tmp_path / "own.sock",))
    assert target("-c", str(file), "--socket", "/x") == Target(sockets=(Path("/x"),))
    monkeypatch.setenv("ACU_NETWORK__UNIX_SOCKET", "/by/variable")
    assert target("-c", str(file)) == Target(sockets=(Path("/by/variable"),))


def test_a_daemon_without_a_socket_is_looked_for_where_it_usually_is(tmp_path: Path, home: dict[str, str]) -> None:
    file = tmp_path / "acu.yaml"
    file.write_text("network: {unix_socket: null}\n")
    assert target("-c", str(file)) == Target(sockets=client_sockets(home))


def test_a_url_comes_with_its_key_and_certificate(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(" sk-1 \n")
    found = target("--url", "https://box:1/", "--api-key-file", str(key), "--ca-file", "/ca")
    assert found == Target(url="https://box:1", api_key="sk-1", ca_file=Path("/ca"))
    assert target("--url", "http://box", "--api-key", "sk-2") == Target(url="http://box", api_key="sk-2")


def test_the_key_of_the_environment_goes_with_a_url_and_an_option_beats_it(
    tmp_path: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACU_API_KEY", " sk-env\n")
    assert target("--url", "http://box") == Target(url="http://box", api_key="sk-env")
    assert target("--url", "http://box", "--api-key", "sk-2").api_key == "sk-2"
    (tmp_path / "key").write_text("sk-1")
    assert target("--url", "http://box", "--api-key-file", str(tmp_path / "key")).api_key == "sk-1"
    assert target() == Target(sockets=client_sockets(home))
    monkeypatch.setenv("ACU_API_KEY", "")
    assert target("--url", "http://box") == Target(url="http://box")


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\xff\xfe", "it is no text")])
def test_a_key_file_that_cannot_be_read_is_named(content: bytes | None, why: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=f"--api-key-file: .*key cannot be read: {why}"):
        target("--url", "http://box", "--api-key-file", str(tmp_path / "key"))
