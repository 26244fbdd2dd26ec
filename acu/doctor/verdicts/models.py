"""Verdicts on the configured models: whether what is here of them can be served."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, Sign

NO_NAMES = ("/", ".", "~")  # what the paths of models begin with, that no pull fetches


def files(examination: Examination) -> Iterator[Sign]:
    """Models whose files are here and cannot be served."""
    for model in examination.models:
        if model.problem:
            pulls = f"; `acu models rm {model.model}` and `acu models pull {model.model}` fetch it again"
            whole = "cannot be read" in model.problem or model.problem.startswith("the disk of ")
            again = "" if whole or model.model.startswith(NO_NAMES) else pulls
            yield Sign(
                "error",
                f"models.{model.key} ({model.model}) cannot be served: {model.problem}",
                f"See who may read it, and let the daemon's user{again}.",
                (f"namei -l {quote(model.path or model.model)}",),
            )


def _well(examination: Examination) -> str:
    here = [f"models.{model.key}" for model in examination.models if model.pulled]
    return f"the files of {', '.join(here)} can be read"


CHECKS = (
    Check(
        id="models.files",
        worst="error",
        looks_at="whether the files of the configured models, where they are here, can be read",
        verdict=files,
        well=_well,
        applies=lambda e: any(model.pulled or model.problem for model in e.models),
        why="The daemon does not start with a model that it cannot read.",
    ),
)
