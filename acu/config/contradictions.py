"""What is wrong with values that are each well-typed, and do not go together. Pure: looks at no file."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from acu.config.fields import Problem, shown
from acu.config.sections import AcuConfig, GpuConfig, NetworkConfig, model_role, names_by_key, split_address
from agentflow.agents.config import AgentConfig
from agentflow.config import ModelConfig
from agentflow.sampling import given

SOCKET_PATH_BYTES = 107  # sun_path, less its final zero


def contradictions(config: AcuConfig) -> list[Problem]:
    """The problems of a whole configuration."""
    network = config.network
    found: list[Problem] = []
    if network.bind_addr is None and network.unix_socket is None:
        found.append(Problem("network", "bind_addr and unix_socket are both null: nothing to listen on; set one"))
    if (network.tls_cert_file is None) != (network.tls_key_file is None):
        lacking = "tls_key_file" if network.tls_key_file is None else "tls_cert_file"
        found.append(Problem(f"network.{lacking}", "TLS needs both tls_cert_file and tls_key_file; set this one too"))
    if network.bind_addr is not None:
        found += address_problems(network)
    if network.unix_socket == "":
        found.append(Problem("network.unix_socket", "is empty; give a path, or null for none"))
    if network.unix_socket and len(os.fsencode(network.unix_socket)) > SOCKET_PATH_BYTES:
        found.append(
            Problem(
                "network.unix_socket",
                f"{network.unix_socket!r} is longer than the {SOCKET_PATH_BYTES} bytes of a socket's path; shorten it",
            )
        )
    return (
        found
        + watermark_problems(config.gpu)
        + model_problems(config.models)
        + agent_problems(config.agents, config.models)
    )


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


def watermark_problems(gpu: GpuConfig) -> list[Problem]:
    """Steps against a full GPU that would come in another order than the one in which they cost more and more."""
    marks = [(name, getattr(gpu, name)) for name in ("limit_prompts_at", "drop_caches_at", "restart_engines_at")]
    return [
        Problem(f"gpu.{name}", f"is {mark:g}, and {before} is {earlier:g}; it must not be less")
        for (before, earlier), (name, mark) in pairwise(marks)
        if mark < earlier
    ]


def model_problems(models: Mapping[str, ModelConfig]) -> list[Problem]:
    """Names that two models claim, and what does not fit a model's role."""
    found: list[Problem] = []
    owners: dict[str, str] = {}
    names = names_by_key(models)
    for key, model in models.items():
        if model.engine == "encoder" and model_role(key, model) == "chat":
            found.append(Problem(f"models.{key}.engine", "'encoder' makes vectors, and the role is chat; use vllm"))
        if model_role(key, model) == "embed" and given(model.sampling):
            text = "is for models that generate, and the role is embed; take it out"
            found.append(Problem(f"models.{key}.sampling", text))
        for name in names[key]:
            if owners.setdefault(name, key) != key:
                text = f"the name {name!r} belongs to models.{owners[name]} too; set served_name or aliases apart"
                found.append(Problem(f"models.{key}", text))
    return found


def agent_problems(agents: Mapping[str, AgentConfig], models: Mapping[str, ModelConfig]) -> list[Problem]:
    """Agents whose models are not served, or do not speak; and those that would refuse with no router to say what."""
    roles = {name: model_role(key, models[key]) for key, names in names_by_key(models).items() for name in names}
    found: list[Problem] = []
    for key, agent in agents.items():
        for field, name in (("model", agent.model), ("small_model", agent.small_model)):
            role = "chat" if name is None else roles.get(name)
            if role is None:
                served = ", ".join(each for each, role in roles.items() if role == "chat") or "none that speaks"
                found.append(Problem(f"agents.{key}.{field}", f"{name!r} is not served; models that are: {served}"))
            elif role != "chat":
                found.append(Problem(f"agents.{key}.{field}", f"{name!r} makes embeddings; name a model that speaks"))
        if agent.no_tool == "refuse" and not (agent.routing and agent.tools):
            lacking = "routing is off" if agent.tools else "there are no tools"
            found.append(Problem(f"agents.{key}.no_tool", f"'refuse' needs a router and its tools, and {lacking}"))
    return found


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
