"""The sections of the configuration, and all of them together: frozen, every field with its description. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from agentflow.agents.config import AgentConfig
from agentflow.config import Mebibytes, ModelConfig, SchedulerConfig, Seconds, Share
from agentflow.library.config import LibraryConfig
from agentflow.tools.config import ToolsConfig
from dataplane.config import DataPlaneConfig

DEFAULT_BIND = "127.0.0.1:8228"


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
            description="YAML file of API keys, closed to others (mode 600 or 640); read again on SIGHUP. null: none asked."
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
        Seconds, Meta(description="Seconds for a request's headers, and for a TLS handshake.")
    ] = 15.0
    body_timeout_s: Annotated[Seconds, Meta(description="Seconds in which a request's body must have arrived.")] = 60.0
    idle_timeout_s: Annotated[
        Seconds, Meta(description="Seconds that a connection may stay open without a request.")
    ] = 75.0
    max_connections: Annotated[
        int,
        Meta(
            description="Connections at a time, over all sockets. For one more the one that has been idle for longest (and for a "
            "second) is closed; where none is, it is answered 503, but for 16 more of the unix socket, and over TCP for "
            "/healthz and /readyz (16 at a time). Fewer, with a warning, where the limit of open files "
            "(ulimit -Hn) is too low.",
            ge=1,
            le=1_000_000,
        ),
    ] = 4096
    namespace: Annotated[
        Annotated[str, Meta(pattern="^[a-z][a-z0-9_.-]{0,62}$")] | None,
        Meta(
            description="Name of the network namespace that scripts/acu-up makes for the daemon of ACU N. null: acuN."
        ),
    ] = None


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
            "Default: 53 % of the device (12288 on an A10G), or what gpu.kv_cache_size_mb leaves."
        ),
    ] = None
    kv_cache_size_mb: Annotated[
        Mebibytes | None,
        Meta(
            description="GPU memory in MiB for the KV pools, shared evenly by models without a kv_cache_mb of their "
            "own. Default: 36 % of the device (8192 on an A10G)."
        ),
    ] = None
    workers_mb: Annotated[
        int,
        Meta(
            description="GPU memory in MiB that the plan leaves to other processes of this ACU, such as tools that compute on "
            "the card. 0: none does.",
            ge=0,
        ),
    ] = 0
    compute_mode: Annotated[
        Literal["auto", "exclusive", "default", "keep"],
        Meta(
            description="Who may compute on the GPU, as scripts/gpu.sh sets it. auto: one process (EXCLUSIVE_PROCESS); where "
            "several engines are to, the server of MPS, or anybody (DEFAULT) where MPS is not installed. keep: as it is."
        ),
    ] = "auto"
    watch_s: Annotated[
        float,
        Meta(description="Seconds between two looks at how much of the GPU's memory is in use.", ge=0.1, le=3600),
    ] = 5.0
    limit_prompts_at: Annotated[
        Share,
        Meta(
            description="Share of the memory that was free after warm-up, from which use on prompts of more than "
            "long_prompt_tokens are refused with 503; sooner where it would be full within two hours as it grows."
        ),
    ] = 0.70
    drop_caches_at: Annotated[
        Share,
        Meta(
            description="Share from which on what engines cache is dropped too, once, and what they keep aside is given back."
        ),
    ] = 0.85
    restart_engines_at: Annotated[
        Share,
        Meta(
            description="Share from which on the engines are restarted, one after the other: requests that run may end within "
            "daemon.drain_timeout_s, others wait."
        ),
    ] = 0.95
    restart_every_s: Annotated[Seconds, Meta(description="Seconds that pass at least between two such restarts.")] = (
        21_600.0
    )
    long_prompt_tokens: Annotated[
        int, Meta(description="Prompts of more tokens are long, where limit_prompts_at keeps those out.", ge=1)
    ] = 2048


class NumaConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of the machine that the daemon and its engines are bound to, so that memory lies beside the GPU."""

    node: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=0, le=1023)] | None,
        Meta(
            description="NUMA node for CPUs and memory. auto: the GPU's; without one that of several with the most free memory. "
            "null: nothing is bound."
        ),
    ] = "auto"
    cpus: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        Meta(description="How many CPUs of the node to use. null: all of it that this process may use."),
    ] = None
    memory_mb: Annotated[
        Mebibytes | None,
        Meta(
            description="Memory in MiB on the node that is meant for this daemon and its engines (16384 beside an A10G). null: "
            "what the node has."
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
        Meta(
            description="File of one JSON line a request: who, what, when; no content. Opened again on SIGHUP. null: none."
        ),
    ] = None


class TelemetryConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Traces of requests and of agents' runs, for a collector that speaks OTLP. (Metrics are at /metrics, always.)"""

    otlp_endpoint: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None,
        Meta(
            description="Base address of the collector, to which /v1/traces is added: `http://127.0.0.1:4318`. null: nothing "
            "is traced.",
        ),
    ] = None
    headers_file: Annotated[
        str | None,
        Meta(
            description="YAML file of headers for the collector, `authorization: Bearer ...`, closed to others (mode 600 or "
            "640). null: none."
        ),
    ] = None
    service_name: Annotated[str, Meta(description="`service.name` of what is sent.", min_length=1, max_length=255)] = (
        "acu"
    )
    sample_share: Annotated[
        float,
        Meta(
            description="Share of traces that are sent, 0 to 1. A request that comes with a `traceparent` is sent or not as "
            "that says.",
            ge=0,
            le=1,
        ),
    ] = 1.0
    content: Annotated[
        bool,
        Meta(
            description="Whether what was asked, answered and called goes along. Whoever reads the collector reads it "
            "then, whichever tenant it belongs to."
        ),
    ] = False


class AcuConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be configured. Frozen; composed once, by `load`."""

    network: NetworkConfig = NetworkConfig()
    gpu: GpuConfig = GpuConfig()
    numa: NumaConfig = NumaConfig()
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
    data_plane: DataPlaneConfig = DataPlaneConfig()
    library: LibraryConfig = LibraryConfig()
    agents: Annotated[
        dict[Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]{0,63}$")], AgentConfig],
        Meta(description="Agents, by their key: `travel` is asked for as the model `agent/travel`."),
    ] = {}
    tools: ToolsConfig = ToolsConfig()
    daemon: DaemonConfig = DaemonConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


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


def model_role(key: str, model: ModelConfig) -> Literal["chat", "embed"]:
    """What a model is for: as configured, else by its key."""
    return model.role or ("embed" if key == "embed" else "chat")


def model_names(key: str, model: ModelConfig) -> tuple[str, ...]:
    """The served name, then every alias, without repetition."""
    own = own_name(model)
    return tuple(dict.fromkeys((model.served_name or own, key, own, *model.aliases)))


def own_name(model: ModelConfig) -> str:
    """The last part of what names a model, which it is called if nothing else is said."""
    return model.model.rstrip("/").rpartition("/")[2]


def names_by_key(models: Mapping[str, ModelConfig]) -> dict[str, tuple[str, ...]]:
    """As `model_names`, of all models. Where one's own name is another's too, only those have it that were given it.

    So one model can be served twice, with other settings and under another name.
    """
    names = {key: model_names(key, model) for key, model in models.items()}
    owners = Counter(name for each in names.values() for name in each)
    for key, model in models.items():
        own = own_name(model)
        if owners[own] > 1 and model.served_name not in (None, own) and own not in (key, *model.aliases):
            names[key] = tuple(name for name in names[key] if name != own)
    return names
