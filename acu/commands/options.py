"""Options that several commands share: which configuration, and which daemon."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from acu.config import AcuConfig, client_sockets, load, process_environment
from acu.config.loading import possible_files
from acu.errors import ConfigError
from acu.process.answers import named_places, wait_for_answers
from acu.telemetry.logs import printable
from acu.terminal.client import Target


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """`-c FILE` after the command as well as before it."""
    parser.add_argument(
        "-c", "--config", metavar="FILE", type=Path, default=argparse.SUPPRESS, help="configuration file (acu.yaml)"
    )


def file_answers(named: Path | None) -> None:
    """Wait until the file system of the configuration's file answers. Raises StartRefused when it does not."""
    files = possible_files(process_environment(), named)
    wait_for_answers([("configuration", str(path)) for path in files], _tell)


def places_answer(config: AcuConfig) -> None:
    """Wait until the file systems of all that the configuration names answer. Raises StartRefused for one that does not."""
    wait_for_answers(named_places(config), _tell)


def _tell(text: str) -> None:
    sys.stderr.write(f"acu: {printable(text)}\n")
    sys.stderr.flush()


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Options that say which daemon is meant."""
    add_config_option(parser)
    parser.add_argument("--socket", metavar="PATH", type=Path, help="the daemon's unix socket")
    parser.add_argument("--url", help="the daemon's address, such as http://127.0.0.1:8228, instead of a socket")
    parser.add_argument("--api-key-file", metavar="FILE", type=Path, help="file with an API key")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="the API key itself, which other users can see in `ps`; for --url, the variable ACU_API_KEY is the default",
    )
    parser.add_argument("--ca-file", metavar="FILE", type=Path, help="certificate to trust, for https")


def target_of(args: argparse.Namespace) -> Target:
    """The daemon that the options mean: a URL, a socket, the configured socket, else where sockets usually are.

    The key of the environment goes with a URL alone: over the socket the daemon's user needs none, and a lesser key would
    take from what that user may do.
    """
    key = args.api_key
    if args.api_key_file is not None:
        try:
            key = args.api_key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError([f"--api-key-file: {args.api_key_file} cannot be read: {why}"]) from error
    if args.url is not None:
        key = key or process_environment().get("ACU_API_KEY", "").strip() or None
        return Target(url=args.url.rstrip("/"), api_key=key, ca_file=args.ca_file)
    return Target(sockets=sockets_of(args), api_key=key)


def sockets_of(args: argparse.Namespace) -> tuple[Path, ...]:
    """Where the daemon's socket may be: as the options say, as configured, else where sockets usually are."""
    if args.socket is not None:
        return (args.socket,)
    environ = process_environment()
    file_answers(args.config)
    loaded = load(environ, file=args.config)
    if "network.unix_socket" in loaded.origins and loaded.config.network.unix_socket is not None:
        return (Path(loaded.config.network.unix_socket),)
    return client_sockets(environ)
