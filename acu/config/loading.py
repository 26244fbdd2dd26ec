"""The one reader of acu.yaml and of the ACU_* variables: text in, one frozen `AcuConfig` out.

Layers, later ones win: defaults (which follow the machine) < the file < ACU_SECTION__FIELD variables < command line.
The file is the first that is named or found: `-c FILE`, ACU_CONFIG, ~/.config/acu/acu.yaml, /etc/acu/acu.yaml.
A `models` section in the file replaces the default one as a whole; variables and flags change single fields.

Nothing is guessed: an unknown key, an ill-typed value, a duplicate key or an unknown ACU_ variable is a problem that
names its path, and all problems of a configuration are told at once (`ConfigError.problems`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from acu.config.contradictions import contradictions, unfit_texts
from acu.config.document import overlay, parse_value, read_document
from acu.config.fields import Problem, check, lies_in
from acu.config.places import anchor_paths, anchored, home_folder, place_programs, with_places
from acu.config.remains import remains
from acu.config.sections import AcuConfig
from acu.errors import ConfigError

# Not fields, from the second line on those of scripts/; ACU_TEST_* is left to the tests as well.
EXEMPT = (
    *("ACU_API_KEY", "ACU_CONFIG", "ACU_DAEMON_PID", "ACU_ENGINE_OUTPUT"),
    *(
        "ACU_CGROUP_ROOT",
        "ACU_COMMAND",
        "ACU_DEV_ROOT",
        "ACU_HOST_PORTS",
        "ACU_METADATA",
        "ACU_PROC_ROOT",
        "ACU_RUN_DIR",
    ),
    *("ACU_SUBNET", "ACU_SYS_ROOT"),
)
SYSTEM_FILE = Path("/etc/acu/acu.yaml")


class LoadedConfig(Struct, frozen=True):
    """A configuration, its file if there was one, and where each value came from (dotted path -> origin).

    An origin is the file's path with a line, the name of a variable, or a command-line flag. Sections have one as well as
    fields, and the file's list items; a field that is not in `origins` has its default.
    """

    config: AcuConfig
    file: Path | None
    origins: dict[str, str]

    def located(self, problem: str) -> str:
        """What a start says of a field (`tools.python.mine: ...`), with where it stands: the value that is told, or else the
        field or section."""
        field, _, said = problem.partition(": ")
        told = [
            (len(value), self.origins[path])
            for path, value in texts_in(msgspec.to_builtins(self.config))
            if lies_in(path, field) and path in self.origins and is_told(value, said)
        ]
        origin = max(told, key=itemgetter(0))[1] if told else self.origins.get(field)
        return f"{problem} ({origin})" if origin else problem


class Judged(Struct, frozen=True):
    """A configuration with all that is wrong with it: `problems`, a line each, at the dotted paths (or variables) of `broken`.

    Where there are any, `loaded` is what remains without them, which can be looked at and not served.
    """

    loaded: LoadedConfig
    problems: tuple[str, ...]
    broken: tuple[str, ...]


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
    judged = judge(environ, file=file, flags=flags, gpu_present=gpu_present)
    if judged.problems:
        raise ConfigError(list(judged.problems))
    return judged.loaded


def judge(
    environ: Mapping[str, str],
    *,
    file: Path | None = None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    gpu_present: bool = False,
) -> Judged:
    """As `load`, for who wants to look at the rest too. Raises ConfigError where there is nothing to judge: no YAML mapping."""
    found = find_file(environ, file)
    document, lines, problems = read_document(found) if found else ({}, {}, [])
    anchor_paths(document, found.parent if found else Path.cwd())
    if found:
        place_programs(document, found.parent)
    if not document.get("models"):
        document["models"] = default_models(gpu_present)
    origins = {path: f"{found}:{line}" for path, line in lines.items()}
    for path, origin, value in (*variables(environ, problems), *((p, *f) for p, f in (flags or {}).items())):
        overlay(document, path, anchored(path, value, Path.cwd()), origin, problems)
        origins = {known: of for known, of in origins.items() if known != path and not lies_in(known, path)}
        origins |= dict.fromkeys(paths_in(value, path), origin)
    problems += unfit_texts(document) or check(document, AcuConfig)
    if problems:
        config, further = remains(document, [problem.path for problem in problems])
        problems += further
    else:
        config = msgspec.convert(document, AcuConfig)
        problems += contradictions(config)
        if problems:
            config, _ = remains(document, [problem.path for problem in problems])
    told = tuple(problem.text(origins) for problem in problems)
    loaded = LoadedConfig(with_places(config, environ), found, origins)
    return Judged(loaded, told, tuple(problem.path for problem in problems))


def find_file(environ: Mapping[str, str], named: Path | None) -> Path | None:
    """The file to read: the one that was named (it must exist), or the first that exists, or None."""
    first, *others = possible_files(environ, named)
    return first if not others else next((path for path in (first, *others) if path.exists()), None)


def possible_files(environ: Mapping[str, str], named: Path | None) -> tuple[Path, ...]:
    """The files that may be read, in order: one alone where it was named."""
    if named is not None:
        return (named.absolute(),)
    if environ.get("ACU_CONFIG"):
        return (Path(environ["ACU_CONFIG"]).absolute(),)
    home = Path(environ.get("XDG_CONFIG_HOME") or home_folder(environ) / ".config")
    return (home / "acu" / "acu.yaml", SYSTEM_FILE)


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


def paths_in(value: Any, path: str) -> Iterator[str]:
    """The dotted paths of a value that lies at `path`, and of everything in it."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths_in(inner, f"{path}.{key}")


def texts_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, text) of every text in a plain document."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_in(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from texts_in(inner, f"{path}[{index}]")


def is_told(value: str, said: str) -> bool:
    """Whether a sentence has `value` in it as a word of its own."""
    return bool(value) and re.search(rf"(?<![\w/.-]){re.escape(value)}(?![\w/-])", said) is not None


def default_models(gpu_present: bool) -> dict[str, Any]:
    """The models that are served when the configuration names none."""
    chat = "qwen2.5-7b-instruct-awq" if gpu_present else "smollm2-135m-instruct"
    return {"large": {"model": chat}, "embed": {"model": "all-minilm-l6-v2"}}
