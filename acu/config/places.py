"""Where files lie: what a path in the configuration counts from, and what `auto` stands for.

Paths may begin with `~`; relative ones count from the file's folder, or from the working folder if a variable or a flag
gives them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from acu.config.sections import AcuConfig
from acu.errors import ConfigError

SYSTEM_SOCKET = Path("/run/acu/acu.sock")
RESULTS = "results"  # in data_plane.path: long results of tools
PATH_FIELDS = frozenset(
    {
        "network.unix_socket",
        "network.api_keys_file",
        "network.tls_cert_file",
        "network.tls_key_file",
        "gpu.model_cache_dir",
        "data_plane.path",
        "data_plane.cold.folder",
        "data_plane.cold.credentials_file",
        "daemon.audit_log",
        "telemetry.headers_file",
        "tools.python.file",
    }
)
TOOL_PATH_FIELDS = frozenset({"document", "file", "folder"})
MODEL_PATH_FIELDS = frozenset({"chat_template", "script"})


def anchored(path: str, value: Any, folder: Path) -> Any:
    """`value` made absolute when the field at the dotted `path` is a file or folder, else as it is."""
    head, _, field = path.rpartition(".")
    in_model = head.startswith("models.") and head.count(".") == 1
    if head.startswith("tools.python.") and field == "module" and isinstance(value, str):
        file, colon, only = value.partition(":")
        return anchored("tools.python.file", file, folder) + colon + only if file.endswith(".py") else value
    in_tools = head.startswith(("tools.mcp.", "tools.http."))
    is_path = (
        path in PATH_FIELDS or (in_tools and field in TOOL_PATH_FIELDS) or (in_model and field in MODEL_PATH_FIELDS)
    )
    if in_model and field == "model" and isinstance(value, str):
        is_path = value.startswith(("./", "../", "~", "/"))
    if not is_path or not isinstance(value, str) or value in {"", "auto"}:
        return value
    try:
        return os.path.normpath(folder / Path(value).expanduser())
    except ValueError:  # a text that no path can be; `unfit_texts` tells
        return value
    except RuntimeError as error:
        raise ConfigError([f"{path}: {value!r}: this user's home folder is not known; write the path out"]) from error


def anchor_paths(document: dict[str, Any], folder: Path, prefix: str = "") -> None:
    """Make every path in the document absolute, in place."""
    for key, value in document.items():
        if isinstance(value, dict):
            anchor_paths(value, folder, f"{prefix}{key}.")
        else:
            document[key] = anchored(f"{prefix}{key}", value, folder)


def place_programs(document: dict[str, Any], folder: Path) -> None:
    """Let the programs of MCP servers run in `folder` where the document names none for them, in place."""
    tools = document.get("tools")
    servers = tools.get("mcp") if isinstance(tools, dict) else None
    for server in servers.values() if isinstance(servers, dict) else ():
        if isinstance(server, dict) and server.get("command"):
            server.setdefault("folder", str(folder))


def with_places(config: AcuConfig, environ: Mapping[str, str]) -> AcuConfig:
    """Replace `auto` by the paths that it stands for."""
    network, gpu = config.network, config.gpu
    if network.unix_socket == "auto":
        network = msgspec.structs.replace(network, unix_socket=str(default_socket(environ)))
    if gpu.model_cache_dir == "auto":
        gpu = msgspec.structs.replace(gpu, model_cache_dir=str(default_model_cache(environ)))
    data_plane = config.data_plane
    if data_plane.path == "auto":
        data_plane = msgspec.structs.replace(data_plane, path=str(default_data(environ)))
    return msgspec.structs.replace(config, network=network, gpu=gpu, data_plane=data_plane)


def default_socket(environ: Mapping[str, str]) -> Path:
    """Where the daemon puts its unix socket when nothing is configured."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "acu" / "acu.sock"
    if environ.get("RUNTIME_DIRECTORY"):
        return Path(environ["RUNTIME_DIRECTORY"].split(":")[0]) / "acu.sock"
    return Path(f"/tmp/acu-{os.geteuid()}/acu.sock")  # noqa: S108  the folder's owner and mode are checked


def client_sockets(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where a client looks for a daemon with a default socket: the user's own first, then the system's."""
    return (default_socket(environ), SYSTEM_SOCKET)


def default_model_cache(environ: Mapping[str, str]) -> Path:
    """Where pulled models lie when nothing is configured."""
    for name in ("CACHE_DIRECTORY", "STATE_DIRECTORY"):
        if environ.get(name):
            return Path(environ[name].split(":")[0]) / "models"
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home_folder(environ) / ".cache") / "acu" / "models"


def default_data(environ: Mapping[str, str]) -> Path:
    """Where data lies when nothing is configured."""
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0]) / "data"
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home_folder(environ) / ".local" / "state") / "acu" / "data"


def history_file(environ: Mapping[str, str]) -> Path:
    """Where `acu chat` keeps the lines that were typed."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home_folder(environ) / ".local" / "state") / "acu" / "chat_history"


def home_folder(environ: Mapping[str, str]) -> Path:
    """The user's home, or the root folder where there is none."""
    return Path(environ.get("HOME") or Path("~").expanduser())
