"""acu.config.sections: what values mean."""

from __future__ import annotations

import pytest

from acu.config import AcuConfig, NetworkConfig, model_names, names_by_key, split_address
from agentflow.config import ModelConfig


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("127.0.0.1", 65535))],
)
def test_an_address_is_split(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


def test_a_model_is_known_by_its_served_name_its_key_and_its_own_name() -> None:
    assert model_names("large", ModelConfig(model="org/My-Model")) == ("My-Model", "large")
    named = ModelConfig(model="m", served_name="gpt", aliases=("gpt", "best"))
    assert model_names("large", named) == ("gpt", "large", "m", "best")


def test_what_a_model_is_called_anyway_belongs_to_who_was_given_it_and_to_nobody_else() -> None:
    def names(**models: ModelConfig) -> dict[str, tuple[str, ...]]:
        return names_by_key(models)

    big, small = ModelConfig(model="q", served_name="big"), ModelConfig(model="q", served_name="small")
    assert names(large=big, other=ModelConfig(model="x")) == {"large": ("big", "large", "q"), "other": ("x", "other")}
    assert names(a=big, b=small) == {"a": ("big", "a"), "b": ("small", "b")}
    assert names(a=big, b=ModelConfig(model="q")) == {"a": ("big", "a"), "b": ("q", "b")}
    assert names(a=big, q=small) == {"a": ("big", "a"), "q": ("small", "q")}
    given = ModelConfig(model="q", served_name="small", aliases=("q",))
    assert names(a=big, b=given) == {"a": ("big", "a"), "b": ("small", "b", "q")}
    assert names(a=ModelConfig(model="q"), b=given) == {"a": ("q", "a"), "b": ("small", "b", "q")}  # is refused


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        AcuConfig().network = NetworkConfig()  # type: ignore[misc]
