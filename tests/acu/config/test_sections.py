"""acu.config.sections: what values mean."""

from __future__ import annotations

import pytest

from acu.config import AcuConfig, NetworkConfig, model_names, split_address
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


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        AcuConfig().network = NetworkConfig()  # type: ignore[misc]
