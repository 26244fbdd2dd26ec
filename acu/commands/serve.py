"""`acu serve`: run the daemon in the foreground."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from acu.commands.options import add_config_option, file_answers, places_answer
from acu.config import LoadedConfig, load, process_environment
from acu.errors import ModelIncomplete, StartRefused
from acu.hardware import gpu_present
from acu.models import is_path, locate, pull
from acu.served import scripted
from acu.telemetry.logs import printable

DESCRIPTION = """\
Run the daemon in the foreground. It accepts on a unix socket and on 127.0.0.1 at once; requests that come while models
load wait for them. Ctrl-C or SIGTERM lets running answers finish, a second one breaks them off. SIGHUP reads the API keys
and the TLS certificate again, and the log names what else has changed and needs a restart.
"""


def add_arguments(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("serve", help="run the daemon", description=DESCRIPTION, allow_abbrev=False)
    add_config_option(parser)
    parser.add_argument(
        "--bind", metavar="ADDR:PORT", help="listen here (network.bind_addr); port 0 takes any free one"
    )
    parser.add_argument("--no-tcp", action="store_true", help="listen on the unix socket only")
    parser.add_argument("--socket", metavar="PATH", help="path of the unix socket (network.unix_socket)")
    parser.add_argument(
        "--engine",
        choices=["scripted"],
        help="play every model by the scripted engine, which needs no files: chat as `scripted`, embeddings as "
        "`scripted-embed`, and under their usual names",
    )
    parser.add_argument("--script", metavar="FILE", help="answers of the scripted engine")
    parser.add_argument("--pull", action="store_true", help="first pull the models that are not on this machine")
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        help="least severe level that is logged (daemon.log_level)",
    )
    parser.add_argument(
        "--log-format",
        choices=["auto", "json", "pretty"],
        help="auto: pretty on a terminal, JSON elsewhere (daemon.log_format)",
    )


def run(args: argparse.Namespace) -> int:
    """Run until a signal comes. Raises ConfigError, StartRefused."""
    from acu import daemon  # not for --help

    file_answers(args.config)
    loaded = configuration(args)
    places_answer(loaded.config)
    if args.pull:
        pull_missing(loaded)
    try:
        code = daemon.serve(loaded, process_environment(), reload=lambda: configuration(args), announce=tell)
    except StartRefused as refused:
        raise StartRefused(*map(loaded.located, refused.problems)) from refused
    leave(code)


def leave(code: int) -> NoReturn:
    """End the process, whose work is done and whose logs are written, as it stands.

    To take a million objects and vLLM's libraries apart takes the interpreter a good while, and some of these libraries
    write what they think of it to standard error.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def configuration(args: argparse.Namespace) -> LoadedConfig:
    """The configuration with the command line laid over it."""
    flags: dict[str, tuple[str, Any]] = {}
    for path, flag in (
        ("network.bind_addr", "bind"),
        ("network.unix_socket", "socket"),
        ("daemon.log_level", "log_level"),
        ("daemon.log_format", "log_format"),
    ):
        value = getattr(args, flag)
        if value is not None:
            flags[path] = (f"--{flag.replace('_', '-')}", value)
    if args.no_tcp:
        flags["network.bind_addr"] = ("--no-tcp", None)
    loaded = load(process_environment(), file=args.config, flags=flags, gpu_present=gpu_present())
    if args.script and args.engine != "scripted":
        raise StartRefused(f"--script: {args.script} is for the scripted engine; add --engine scripted")
    if args.engine == "scripted":
        script = str(Path(args.script).absolute()) if args.script else None
        models = scripted(loaded.config.models, script)
        loaded = replace(loaded, config=replace(loaded.config, models=models))
    return loaded


def pull_missing(loaded: LoadedConfig) -> None:
    """Pull every model of the catalogue or the hub that is not in the cache, or not whole, with progress.

    A folder cannot be pulled: what is wrong with it is for the start to say. Raises ModelError.
    """
    from acu.commands.models import progress_bars  # rich, only here

    cache_dir = Path(loaded.config.gpu.model_cache_dir)
    for key, model in loaded.config.models.items():
        if model.engine == "scripted" or is_path(model.model):
            continue
        try:
            locate(model.model, cache_dir)
        except ModelIncomplete:
            sys.stderr.write(f"acu: models.{key}: pulling {model.model}\n")
            with progress_bars(model.model) as progress:
                pull(model.model, cache_dir, progress)


def tell(addresses: list[str]) -> None:
    """Say on standard error, when it is a terminal, where the daemon listens and how to go on."""
    if not sys.stderr.isatty():
        return
    sys.stderr.write(f"acu: listening on {printable(' and '.join(addresses))}; try `acu chat` in another terminal\n")
