"""The one reader of acu.yaml and of the ACU_* variables: text in, one frozen `AcuConfig` out.

Layers, later ones win: defaults (which follow the machine) < the file < ACU_SECTION__FIELD variables < command line.
The file is the first that is named or found: `-c FILE`, ACU_CONFIG, ~/.config/acu/acu.yaml, /etc/acu/acu.yaml.
A `models` section in the file replaces the default one as a whole; variables and flags change single fields.

Nothing is guessed: an unknown key, an ill-typed value, a duplicate key or an unknown ACU_ variable is a problem that
names its path, and all problems of a configuration are told at once (`ConfigError.problems`).
Paths may begin with `~`; relative ones count from the file's folder, or from the working folder if given elsewhere.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from acu.config_document import overlay, parse_value, read_document
from acu.config_fields import Problem, check, shown
from acu.errors import ConfigError
from agentflow.config import Mebibytes, ModelConfig, SchedulerConfig, Seconds

DEFAULT_BIND = "127.0.0.1:8228"
EXEMPT = ("ACU_CONFIG", "ACU_DAEMON_PID", "ACU_ENGINE_OUTPUT")  # not fields; ACU_TEST_* is left to the tests as well
SYSTEM_FILE = Path("/etc/acu/acu.yaml")
SYSTEM_SOCKET = Path("/run/acu/acu.sock")
SOCKET_PATH_BYTES = 107  # sun_path, less its final zero


class NetworkConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the daemon listens, and who may come in."""

    bind_addr: Annotated[
        str | None,
        Meta(
            description="Address and port to listen on: `127.0.0.1:8228`, `[::1]:8228`, `localhost:0` (any free port). "
            "null: no TCP. Beyond loopback, api_keys_file and both TLS files are required."
        ),
    ] = DEFAULT_BIND
    unix_socket: Annotated[
        str | None,
        Meta(
            description="Path of the unix socket; null: none. auto: $XDG_RUNTIME_DIR/acu/acu.sock, else the service's "
            "RuntimeDirectory (/run/acu/acu.sock), else /tmp/acu-UID/acu.sock."
        ),
    ] = "auto"
    socket_mode: Annotated[str, Meta(description="Permissions of the unix socket, octal.", pattern="^0?[0-7]{3}$")] = (
        "0600"
    )
    api_keys_file: Annotated[
        str | None,
        Meta(
            description="YAML file of API keys, not readable by others (mode 600, 640); read again on SIGHUP. null: none asked."
        ),
    ] = None
    tls_cert_file: Annotated[
        str | None, Meta(description="PEM file with the certificate chain for TCP. null: no TLS.")
    ] = None
    tls_key_file: Annotated[str | None, Meta(description="PEM file with the certificate's private key.")] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(description="Further names that a `Host` header may carry, besides localhost and the bound address."),
    ] = ()
    max_body_mb: Annotated[
        int,
        Meta(
            description="Largest request body in MiB. 16 of that size have room at a time; what comes beyond is answered "
            "503.",
            ge=1,
            le=1024,
        ),
    ] = 16
    header_timeout_s: Annotated[
        Seconds, Meta(description="Seconds in which a connection must have sent its request's headers.")
    ] = 15.0
    body_timeout_s: Annotated[Seconds, Meta(description="Seconds in which a request's body must have arrived.")] = 60.0
    idle_timeout_s: Annotated[
        Seconds, Meta(description="Seconds that a connection may stay open without a request.")
    ] = 75.0
    max_connections: Annotated[
        int,
        Meta(
            description="Connections at a time, over all sockets. One more is answered 503. Fewer, with a warning, where "
            "the limit of open files (ulimit -Hn) is too low.",
            ge=1,
            le=1_000_000,
        ),
    ] = 4096


class GpuConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The accelerator, and where models lie. Without a GPU only model_cache_dir matters."""

    device_id: Annotated[int, Meta(description="Index of the GPU to use, as nvidia-smi counts.", ge=0, le=255)] = 0
    model_cache_dir: Annotated[
        str,
        Meta(
            description="Folder with the pulled models, best on NVMe. auto: the service's CacheDirectory or "
            "StateDirectory, else $XDG_CACHE_HOME/acu/models, else ~/.cache/acu/models."
        ),
    ] = "auto"
    weights_mb: Annotated[
        Mebibytes | None,
        Meta(
            description="GPU memory in MiB for all models' weights; models that need more are refused at the start. "
            "Default: 53 % of the device (12288 on an A10G)."
        ),
    ] = None
    kv_cache_size_mb: Annotated[
        Mebibytes | None,
        Meta(
            description="GPU memory in MiB for the KV pools, shared evenly by models without a kv_cache_mb of their "
            "own. Default: 36 % of the device (8192 on an A10G)."
        ),
    ] = None


class DaemonConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The process: how it ends, and what it says."""

    drain_timeout_s: Annotated[
        Seconds, Meta(description="Seconds that running requests may take to finish after SIGTERM or SIGINT.")
    ] = 60.0
    log_format: Annotated[
        Literal["auto", "json", "pretty"],
        Meta(description="Form of the log on standard error. auto: pretty on a terminal, JSON elsewhere."),
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe level that is logged.")
    ] = "info"
    audit_log: Annotated[
        str | None,
        Meta(description="File to which one JSON line a request is appended: who, what, when; no content. null: none."),
    ] = None


class AcuConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be configured. Frozen; composed once, by `load`."""

    network: NetworkConfig = NetworkConfig()
    gpu: GpuConfig = GpuConfig()
    models: Annotated[
        dict[Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]{0,63}$")], ModelConfig],
        Meta(
            description="Models to serve, by their key, which is an alias as well (`large`, `embed`). Default: on a GPU "
            "`large: {model: qwen2.5-7b-instruct-awq}`, else `large: {model: smollm2-135m-instruct}`; and "
            "`embed: {model: all-minilm-l6-v2}`, which takes texts as they are (multilingual-e5-small wants each to begin "
            "with `query: ` or `passage: `)."
        ),
    ] = {}
    scheduler: SchedulerConfig = SchedulerConfig()
    daemon: DaemonConfig = DaemonConfig()


class LoadedConfig(Struct, frozen=True):
    """A configuration, its file if there was one, and where each value came from (dotted path -> origin).

    An origin is `default`, the file's path with a line, the name of a variable, or a command-line flag; a path that
    is not in `origins` is a default.
    """

    config: AcuConfig
    file: Path | None
    origins: dict[str, str]


def process_environment() -> MutableMapping[str, str]:
    """The environment of this process: the one place that reads it."""
    return os.environ


def load(
    environ: Mapping[str, str],
    *,
    file: Path | None = None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    gpu_present: bool = False,
) -> LoadedConfig:
    """Compose the configuration. Raises ConfigError with every problem found.

    `file` is what `-c` named; `flags` maps a dotted path to (flag, value).
    """
    found = find_file(environ, file)
    document, lines, problems = read_document(found) if found else ({}, {}, [])
    anchor_paths(document, found.parent if found else Path.cwd())
    if not document.get("models"):
        document["models"] = default_models(gpu_present)
    origins = {path: f"{found}:{line}" for path, line in lines.items()}
    for path, origin, value in (*variables(environ, problems), *((p, *f) for p, f in (flags or {}).items())):
        overlay(document, path, anchored(path, value, Path.cwd()), origin, problems)
        origins[path] = origin
    problems += unfit_texts(document) or check(document, AcuConfig)
    if not problems:
        config = msgspec.convert(document, AcuConfig)
        problems += contradictions(config)
        if not problems:
            return LoadedConfig(with_places(config, environ), found, origins)
    raise ConfigError([problem.text(origins) for problem in problems])


def find_file(environ: Mapping[str, str], named: Path | None) -> Path | None:
    """The file to read: the one that was named (it must exist), or the first that exists, or None."""
    if named is not None:
        return named.absolute()
    if environ.get("ACU_CONFIG"):
        return Path(environ["ACU_CONFIG"]).absolute()
    home = Path(environ.get("XDG_CONFIG_HOME") or home_folder(environ) / ".config")
    return next((path for path in (home / "acu" / "acu.yaml", SYSTEM_FILE) if path.exists()), None)


def variables(environ: Mapping[str, str], problems: list[Problem]) -> Iterator[tuple[str, str, Any]]:
    """(dotted path, variable, value) of every ACU_SECTION__FIELD variable; others with the prefix are problems."""
    for name in sorted(environ):
        if not name.startswith("ACU_") or name in EXEMPT or name.startswith("ACU_TEST_"):
            continue
        if "__" not in name:
            problems.append(Problem(name, "unknown variable; a field's is ACU_SECTION__FIELD"))
            continue
        parts = name.removeprefix("ACU_").lower().split("__")
        if not all(parts):
            problems.append(Problem(name, "unknown variable; a field's is ACU_SECTION__FIELD"))
            continue
        path = ".".join(parts)
        yield path, name, parse_value(name, environ[name], problems)


PATH_FIELDS = frozenset(
    {
        "network.unix_socket",
        "network.api_keys_file",
        "network.tls_cert_file",
        "network.tls_key_file",
        "gpu.model_cache_dir",
        "daemon.audit_log",
    }
)
MODEL_PATH_FIELDS = frozenset({"chat_template", "script"})


def anchored(path: str, value: Any, folder: Path) -> Any:
    """`value` made absolute when the field at the dotted `path` is a file or folder, else as it is."""
    head, _, field = path.rpartition(".")
    in_model = head.startswith("models.") and head.count(".") == 1
    is_path = path in PATH_FIELDS or (in_model and field in MODEL_PATH_FIELDS)
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


def default_models(gpu_present: bool) -> dict[str, Any]:
    """The models that are served when the configuration names none."""
    chat = "qwen2.5-7b-instruct-awq" if gpu_present else "smollm2-135m-instruct"
    return {"large": {"model": chat}, "embed": {"model": "all-minilm-l6-v2"}}


def with_places(config: AcuConfig, environ: Mapping[str, str]) -> AcuConfig:
    """Replace `auto` by the paths that it stands for."""
    network, gpu = config.network, config.gpu
    if network.unix_socket == "auto":
        network = msgspec.structs.replace(network, unix_socket=str(default_socket(environ)))
    if gpu.model_cache_dir == "auto":
        gpu = msgspec.structs.replace(gpu, model_cache_dir=str(default_model_cache(environ)))
    return msgspec.structs.replace(config, network=network, gpu=gpu)


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


def history_file(environ: Mapping[str, str]) -> Path:
    """Where `acu chat` keeps the lines that were typed."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home_folder(environ) / ".local" / "state") / "acu" / "chat_history"


def home_folder(environ: Mapping[str, str]) -> Path:
    """The user's home, or the root folder where there is none."""
    return Path(environ.get("HOME") or Path("~").expanduser())


def split_address(address: str) -> tuple[str, int]:
    """(IP address, port) of `bind_addr`. Raises ValueError saying what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("expected ADDRESS:PORT, such as 127.0.0.1:8228 or [::1]:8228")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(host)), int(port)
    except ValueError:
        raise ValueError(f"{host!r} is not an IP address; names other than localhost are not looked up") from None


def unfit_texts(value: Any, path: str = "") -> list[Problem]:
    """Texts that neither a file's name nor an answer can carry."""
    if isinstance(value, dict):
        keys = [problem for key in value for problem in unfit_texts(key, f"{path}.{key}" if path else str(key))]
        inner = [unfit_texts(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()]
        return keys + [problem for found in inner for problem in found]
    if isinstance(value, list):
        return [problem for index, item in enumerate(value) for problem in unfit_texts(item, f"{path}[{index}]")]
    if not isinstance(value, str):
        return []
    try:
        fit = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        fit = False
    return [] if fit else [Problem(path, f"{shown(value)}: holds a NUL or half of a surrogate pair; take it out")]


def contradictions(config: AcuConfig) -> list[Problem]:
    """What is wrong with values that are each well-typed. Looks at no file."""
    network = config.network
    found: list[Problem] = []
    if network.bind_addr is None and network.unix_socket is None:
        found.append(Problem("network", "bind_addr and unix_socket are both null: nothing to listen on; set one"))
    if (network.tls_cert_file is None) != (network.tls_key_file is None):
        lacking = "tls_key_file" if network.tls_key_file is None else "tls_cert_file"
        found.append(Problem(f"network.{lacking}", "TLS needs both tls_cert_file and tls_key_file; set this one too"))
    if network.bind_addr is not None:
        found += address_problems(network)
    if network.unix_socket and len(os.fsencode(network.unix_socket)) > SOCKET_PATH_BYTES:
        found.append(
            Problem(
                "network.unix_socket",
                f"{network.unix_socket!r} is longer than the {SOCKET_PATH_BYTES} bytes of a socket's path; shorten it",
            )
        )
    return found + model_problems(config.models)


def address_problems(network: NetworkConfig) -> list[Problem]:
    """What is wrong with `bind_addr`: its form, or that it lies open."""
    assert network.bind_addr is not None
    try:
        host, _ = split_address(network.bind_addr)
    except ValueError as error:
        return [Problem("network.bind_addr", f"{network.bind_addr!r}: {error}")]
    return [Problem("network.bind_addr", text) for text in exposure_problems(network, host)]


def exposure_problems(network: NetworkConfig, host: str) -> list[str]:
    """Why `host` must not be listened on with these settings; empty when it may. Also for sockets from systemd."""
    if ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return []
    lacking = [name for name in ("api_keys_file", "tls_cert_file", "tls_key_file") if getattr(network, name) is None]
    if not lacking:
        return []
    fields = ", ".join(f"network.{name}" for name in lacking)
    return [f"{host} can be reached from other machines, which needs API keys and TLS: set {fields}, or use 127.0.0.1"]


def model_role(key: str, model: ModelConfig) -> Literal["chat", "embed"]:
    """What a model is for: as configured, else by its key."""
    return model.role or ("embed" if key == "embed" else "chat")


def model_names(key: str, model: ModelConfig) -> tuple[str, ...]:
    """The served name, then every alias, without repetition."""
    own = model.model.rstrip("/").rpartition("/")[2]
    return tuple(dict.fromkeys((model.served_name or own, key, own, *model.aliases)))


def model_problems(models: Mapping[str, ModelConfig]) -> list[Problem]:
    """Names that two models claim, and engines that do not fit a role."""
    found: list[Problem] = []
    owners: dict[str, str] = {}
    for key, model in models.items():
        if model.engine == "encoder" and model_role(key, model) == "chat":
            found.append(Problem(f"models.{key}.engine", "'encoder' makes vectors, and the role is chat; use vllm"))
        for name in model_names(key, model):
            if owners.setdefault(name, key) != key:
                text = f"the name {name!r} belongs to models.{owners[name]} too; set served_name or aliases apart"
                found.append(Problem(f"models.{key}", text))
    return found
