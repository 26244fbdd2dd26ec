"""acu.config.places: what a path counts from, and what `auto` stands for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acu.config import client_sockets, default_model_cache, default_socket, load
from tests.acu.config.files import problems, write


def test_relative_paths_count_from_the_files_folder_and_tilde_is_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    file = write(
        tmp_path / "acu.yaml",
        """\
        network: {api_keys_file: keys.yaml, unix_socket: ~/s.sock}
        models: {large: {model: ./weights, script: ../s.yaml}, small: {model: org/name}}
        data_plane: {path: data, cold: {folder: archive, credentials_file: ~/credentials}}
        """,
    )
    config = load({"HOME": "/home/somebody"}, file=file).config
    assert config.network.api_keys_file == str(tmp_path / "keys.yaml")
    assert config.network.unix_socket == "/home/somebody/s.sock"
    assert config.models["large"].model == str(tmp_path / "weights")
    assert config.models["large"].script == str(tmp_path.parent / "s.yaml")
    assert config.models["small"].model == "org/name"
    assert config.data_plane.path == str(tmp_path / "data")
    assert config.data_plane.cold.folder == str(tmp_path / "archive")
    assert config.data_plane.cold.credentials_file == "/home/somebody/credentials"


def test_a_server_s_program_runs_in_the_files_folder_unless_the_file_names_one(tmp_path: Path) -> None:
    (tmp_path / "acu").mkdir()
    file = write(
        tmp_path / "acu" / "acu.yaml",
        """\
        tools:
          mcp:
            plain: {command: [python, server.py]}
            above: {command: [python, server.py], folder: ..}
            root: {command: [python, server.py], folder: null}
            far: {url: "https://mcp.test/"}
        """,
    )
    found = {name: source.folder for name, source in load({}, file=file).config.tools.mcp.items()}
    assert found == {"plain": str(tmp_path / "acu"), "above": str(tmp_path), "root": None, "far": None}


@pytest.mark.parametrize("tools", ["5", "{mcp: 5}", "{mcp: {notes: 5}}", "{mcp: {notes: {command: 5}}}"])
def test_servers_that_are_none_are_told_as_such(tmp_path: Path, tools: str) -> None:
    assert "expected" in problems(tmp_path, f"tools: {tools}")[0]


def test_the_socket_lies_in_the_runtime_folder_of_the_user_then_of_the_service_then_in_tmp(tmp_path: Path) -> None:
    assert default_socket({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "acu" / "acu.sock"
    service = {"XDG_RUNTIME_DIR": str(tmp_path / "none"), "RUNTIME_DIRECTORY": "/run/acu:/run/other"}
    assert default_socket(service) == Path("/run/acu/acu.sock")
    assert default_socket({}) == Path(f"/tmp/acu-{os.geteuid()}/acu.sock")
    assert client_sockets({})[-1] == Path("/run/acu/acu.sock")


def test_models_are_cached_where_the_service_says_or_in_the_users_cache(tmp_path: Path) -> None:
    assert default_model_cache({"CACHE_DIRECTORY": "/var/cache/acu", "HOME": "/x"}) == Path("/var/cache/acu/models")
    assert default_model_cache({"STATE_DIRECTORY": "/var/lib/acu", "HOME": "/x"}) == Path("/var/lib/acu/models")
    assert default_model_cache({"XDG_CACHE_HOME": "/c", "HOME": "/x"}) == Path("/c/acu/models")
    assert default_model_cache({"HOME": "/x"}) == Path("/x/.cache/acu/models")


def test_a_path_below_the_home_of_nobody_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "network: {unix_socket: ~no-such-user/x}")
    assert found.startswith("network.unix_socket: '~no-such-user/x': this user's home folder is not known")
