"""`acu config`: schema, check, show, get and reference of the configuration."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec

from acu.commands import exits
from acu.commands.options import add_config_option, file_answers, places_answer
from acu.commands.output import out
from acu.config import AcuConfig, LoadedConfig, hangs, judge, load, process_environment
from acu.config.fields import Field, fields_of, hint
from acu.errors import ConfigError, StartRefused
from acu.ground import check
from acu.hardware import gpu_present
from acu.telemetry.logs import printable

REFERENCE_HEAD = """\
# Configuration

One YAML file, of which every part may be left out. The first that is named or found is read: `-c FILE`, the variable
`ACU_CONFIG`, `~/.config/acu/acu.yaml`, `/etc/acu/acu.yaml`. With no file at all, the defaults follow the machine.

- Any field can be overridden by a variable `ACU_SECTION__FIELD` with a YAML value:
  `ACU_NETWORK__BIND_ADDR=127.0.0.1:9000`, `ACU_MODELS__LARGE__MAX_RUNNING=8`, `ACU_NETWORK__ALLOWED_HOSTS='[acu.local]'`.
- A `models` section in the file replaces the default models as a whole.
- Unknown keys, unknown `ACU_` variables and ill-typed values are refused; the message names the nearest known key.
- Paths may begin with `~`; relative ones count from the file's folder.
- `acu config check FILE` tells every problem for which `acu serve -c FILE` would not start, ports and sockets aside, and what
  is wrong with the tools of agents (`--no-tools`: not that);
  `acu config show` the effective values and where each came from, `acu config get network.unix_socket` one effective value;
  `acu config schema` prints the JSON schema. This page is the output of `acu config reference`.
"""

SECRETS = frozenset({"data_plane.cold.secret_access_key"})
HIDDEN = "(hidden)"

DESCRIPTION = """\
Check and show the configuration. Which file is read, and what overrides it: see `acu --help`.
"""
CHECK_DESCRIPTION = """\
Tell every problem for which `acu serve -c FILE` would refuse to start, as far as looking at files and memory tells: unknown
keys and ill-typed values, keys and certificates that cannot be used, models that are missing or do not fit, an audit log
that may not be written. No port or socket is tried, nothing is made, and nothing opened for writing (so a pipe that nobody
reads passes as an audit log). Variables ACU_SECTION__FIELD count as they do for `acu serve`. What hangs on a value that is
itself wrong is told once that is mended: the tools that an agent names while a section of `tools` cannot be read, whether
the models fit while one of them cannot.

Where there are agents, their tools are looked at: Python modules are imported, each by a process of its own as the daemon does;
OpenAPI documents and secrets' files are read; the programs of MCP servers must be there. No server is started or asked, so a
name that an agent gives to no tool that was found is only warned of where there are MCP servers, which may have it.
"""


def add_arguments(subparsers: Any) -> None:
    """Declare the command and its actions."""
    parser = subparsers.add_parser(
        "config", help="check and show the configuration", description=DESCRIPTION, allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="what `acu serve` would refuse: exit code 0, or 2 with every problem",
        description=CHECK_DESCRIPTION,
        allow_abbrev=False,
    )
    check.add_argument("file", metavar="FILE", nargs="?", type=Path, help="default: what `acu serve` would read now")
    check.add_argument("--no-tools", action="store_true", help="do not look at agents' tools: import no Python module")
    add_config_option(check)
    show = actions.add_parser("show", help="the effective configuration, and where each value came from")
    show.add_argument("--json", action="store_true", help="as JSON")
    add_config_option(show)
    get = actions.add_parser("get", help="one effective value: a text as it is, anything else as JSON")
    get.add_argument("field", metavar="FIELD", help="dotted path, such as network.unix_socket")
    add_config_option(get)
    actions.add_parser("schema", help="JSON schema of the file")
    actions.add_parser("reference", help="every field, as Markdown")


def run(args: argparse.Namespace) -> int:
    """Run the action. Problems of a configuration come as ConfigError."""
    if args.action == "schema":
        out(json.dumps(msgspec.json.schema(AcuConfig), indent=2))
    elif args.action == "reference":
        out(reference().rstrip())
    elif args.action == "check":
        check_file(args.file or args.config, tools=not args.no_tools)
    else:
        loaded = load(process_environment(), file=args.config, gpu_present=gpu_present())
        if args.action == "get":
            value = value_at(loaded, args.field)
            out(value if isinstance(value, str) else json.dumps(value))
        else:
            out(as_json(loaded) if args.json else as_table(loaded))
    return exits.OK


def check_file(named: Path | None, *, tools: bool = True) -> None:
    """Look for what a start would refuse, and at agents' tools. Raises ConfigError, with all of it."""
    environ = process_environment()
    file_answers(named)
    judged = judge(environ, file=named, gpu_present=gpu_present())
    loaded, problems = judged.loaded, list(judged.problems)
    places_answer(loaded.config)

    def warn(text: str) -> None:
        if not hangs(text.partition(": ")[0], judged.broken):
            _warn(loaded.located(text))

    log = _Told()
    logging.getLogger().addHandler(log)
    try:
        check(loaded.config, warn, environ if tools else None, loaded.file)
    except StartRefused as refused:
        follow = (text for text in refused.problems if not hangs(text.partition(": ")[0], judged.broken))
        problems += map(loaded.located, follow)
    finally:
        logging.getLogger().removeHandler(log)
    if problems:
        raise ConfigError(problems)
    variables = sorted({origin for origin in loaded.origins.values() if origin.startswith("ACU_")})
    beside = f", with {', '.join(variables)}" if variables else ""
    out(f"{loaded.file or 'the defaults (there is no file)'}{beside}: valid")


def _warn(text: str) -> None:
    sys.stderr.write(f"acu: {printable(text)}\n")


class _Told(logging.Handler):
    """What is logged meanwhile. Nothing of tools, of which each problem comes with its field."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and not record.name.startswith("agentflow.tools."):
            for line in self.format(record).splitlines():
                _warn(line)


def value_at(loaded: LoadedConfig, path: str) -> Any:
    """The effective value, or section, at a dotted path. Raises ConfigError for one that is not there."""
    value = shown(loaded)
    for depth, key in enumerate(parts := path.split(".")):
        if not isinstance(value, dict):
            raise ConfigError([f"{path}: {'.'.join(parts[:depth])} has no fields"])
        if key not in value:
            raise ConfigError([f"{path}: unknown key {key!r}{hint(key, value)}"])
        value = value[key]
    return value


def shown(loaded: LoadedConfig) -> Any:
    """The effective configuration as plain values, without its secrets: terminals and bug reports are read by others."""
    document = msgspec.to_builtins(loaded.config)
    for path in SECRETS:
        *heads, field = path.split(".")
        section = document
        for head in heads:
            section = section[head]
        if section[field] is not None:
            section[field] = HIDDEN
    return document


def as_json(loaded: LoadedConfig) -> str:
    """The effective configuration with origins, as one JSON object."""
    origins = {path: origin_of(path, loaded) for path, _ in leaves(shown(loaded))}
    document = {
        "file": str(loaded.file) if loaded.file else None,
        "config": shown(loaded),
        "origins": origins,
    }
    return json.dumps(document, indent=2)


def as_table(loaded: LoadedConfig) -> str:
    """The effective configuration, one field a line."""
    rows = [(path, json.dumps(value), origin_of(path, loaded)) for path, value in leaves(shown(loaded))]
    left, middle = (max(len(row[column]) for row in rows) for column in (0, 1))
    head = f"# file: {loaded.file or 'none'}"
    return "\n".join([head, *(f"{path:{left}}  {value:{middle}}  {origin}" for path, value, origin in rows)])


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """(dotted path, value) of every field of a plain document."""
    if isinstance(value, dict) and value:
        return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}" if path else str(key))]
    return [(path, value)]


def origin_of(path: str, loaded: LoadedConfig) -> str:
    """Where the value at `path` came from."""
    return loaded.origins.get(path, "default")


def reference() -> str:
    """docs/configuration.md."""
    sections: list[str] = [REFERENCE_HEAD]
    table: list[Field] = []

    def flush() -> None:
        if table:
            rows = [f"| `{f.path.rpartition('.')[2]}` | {f.type} | `{f.default}` | {f.description} |" for f in table]
            sections.append("\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows, ""]))
            table.clear()

    for field in fields_of(AcuConfig):
        if field.type.startswith("section"):
            flush()
            sections.append(f"## {field.path}\n\n{field.description}\n")
        else:
            table.append(field)
    flush()
    return "\n".join(sections)
