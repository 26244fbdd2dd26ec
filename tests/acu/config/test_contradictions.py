"""acu.config.contradictions: well-typed values that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from acu.config import NetworkConfig, exposure_problems, load, names_by_key
from acu.served import scripted
from tests.acu.config.files import problems, write


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("network: {bind_addr: 'localhost'}", "network.bind_addr: 'localhost': expected ADDRESS:PORT"),
        ("network: {bind_addr: '127.0.0.1:99999'}", "network.bind_addr: '127.0.0.1:99999': expected ADDRESS:PORT"),
        ("network: {bind_addr: 'box:80'}", "network.bind_addr: 'box:80': 'box' is not an IP address"),
        (
            "gpu: {limit_prompts_at: 0.9}",
            "gpu.drop_caches_at: is 0.85, and limit_prompts_at is 0.9; it must not be less",
        ),
        (
            "gpu: {restart_engines_at: 0.5}",
            "gpu.restart_engines_at: is 0.5, and drop_caches_at is 0.85; it must not be",
        ),
        ("network: {bind_addr: null, unix_socket: null}", "network: bind_addr and unix_socket are both null"),
        ("network: {unix_socket: ''}", "network.unix_socket: is empty; give a path, or null for none"),
        ("network: {tls_cert_file: a.pem}", "network.tls_key_file: TLS needs both"),
        ("network: {bind_addr: '0.0.0.0:8228'}", "network.bind_addr: 0.0.0.0 can be reached from other machines"),
        ("network: {bind_addr: '[::]:8228', api_keys_file: k}", "set network.tls_cert_file, network.tls_key_file"),
        ("models: {a: {model: m}, b: {model: m}}", "models.b: the name 'm' belongs to models.a too"),
        ("models: {a: {model: m, engine: encoder}}", "models.a.engine: 'encoder' makes vectors"),
        ("models: {embed: {model: m, sampling: {top_k: 1}}}", "models.embed.sampling: is for models that generate"),
        (
            "models: {a: {model: m, role: embed, sampling: {min_p: 0}}}",
            "models.a.sampling: is for models that generate",
        ),
        ("models: {Large: {model: m}}", "models.Large: 'Large': expected text of the form"),
        (
            "agents: {a: {no_tool: refuse}}",
            "agents.a.no_tool: 'refuse' needs a router and its tools, and there are no tools",
        ),
        (
            "agents: {a: {no_tool: refuse, tools: [calculator], routing: false}}",
            "agents.a.no_tool: 'refuse' needs a router and its tools, and routing is off",
        ),
        ("network: 3", "network: 3: expected a section with keys bind_addr"),
        ("models: [a]", "models: ['a']: expected a mapping from names to sections"),
    ],
)
def test_contradictions_name_the_field_and_what_to_do(tmp_path: Path, text: str, problem: str) -> None:
    assert any(problem in found for found in problems(tmp_path, text)), problems(tmp_path, text)


def test_one_model_can_be_served_twice_under_names_of_its_own(tmp_path: Path) -> None:
    text = (
        "models: {large: {model: m}, small: {model: m, served_name: m-small, max_model_len: 512}}\n"
        "agents: {a: {model: m, small_model: m-small}}"
    )
    loaded = load({"HOME": str(tmp_path)}, file=write(tmp_path / "ok.yaml", text))
    assert names_by_key(loaded.config.models) == {"large": ("m", "large"), "small": ("m-small", "small")}
    assert names_by_key(scripted(loaded.config.models, None)) == {
        "large": ("scripted", "large", "m"),
        "small": ("scripted-small", "small", "m-small"),
    }


def test_sampling_that_says_nothing_is_no_contradiction(tmp_path: Path) -> None:
    load({"HOME": str(tmp_path)}, file=write(tmp_path / "ok.yaml", "models: {embed: {model: m, sampling: {}}}"))


def test_a_socket_path_that_the_kernel_cannot_take_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, f"network: {{unix_socket: /{'x' * 107}}}")
    assert "longer than the 107 bytes" in found
    load({"HOME": str(tmp_path)}, file=write(tmp_path / "ok.yaml", f"network: {{unix_socket: /{'x' * 106}}}"))


def test_only_loopback_may_lie_open() -> None:
    assert exposure_problems(NetworkConfig(), "127.8.8.8") == []
    assert exposure_problems(NetworkConfig(), "::1") == []
    full = NetworkConfig(api_keys_file="k", tls_cert_file="c", tls_key_file="t")
    assert exposure_problems(full, "192.168.0.1") == []
    assert exposure_problems(NetworkConfig(api_keys_file="k"), "192.168.0.1") != []


@pytest.mark.parametrize("path", ['"/x/\\ud800"', '"/x/\\0"', '"~\\0"', '"~\\ud800/x"'])
def test_a_text_that_no_path_can_be_is_refused(tmp_path: Path, path: str) -> None:
    (found,) = problems(tmp_path, f"network: {{unix_socket: {path}}}")
    assert found.startswith("network.unix_socket: ")
    assert "NUL or half of a surrogate pair" in found
