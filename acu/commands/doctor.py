"""`acu doctor`: looks at the box, or at a report of another one, and says what is not well and what to do about it."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from acu.commands import exits
from acu.commands.options import add_config_option
from acu.commands.output import out
from acu.commands.plan import add_plan_options, run_plan
from acu.config import load, process_environment
from acu.doctor import bios
from acu.doctor.examination import FORM, Examination
from acu.doctor.findings import Check, Judgement, judge
from acu.doctor.verdicts import CHECKS
from acu.errors import ConfigError
from acu.hardware import gpu_present
from agentflow.nearest import nearest

MOST_BYTES: Final = 1 << 20  # of a report; that of a box with 256 CPUs and 8 cards has 63 KB
EXITS: Final = (exits.OK, exits.FAILED, exits.REFUSED)  # by severity
PAGES: Final = ("checks", "bios")

DESCRIPTION = """\
Look at the GPU and its driver, NUMA, the kernel, disks, the network and
versions, against the configuration, and tell what is not well: what was seen,
why it matters, and the command, field or BIOS entry that changes it. Nothing is
changed, and no root is needed; as root it sees more. Errors keep the daemon
from starting or a part from working, warnings cost speed or safety, notes are
for your knowledge.
"""
EPILOG = """\
exit codes:
  0 nothing worse than notes   1 warnings   2 errors, and wrong usage, or a
  configuration or report that cannot be used

docs/doctor.md lists every check, bios-checklist.md the BIOS settings by vendor.
"""


def add_arguments(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="what is not well with this box, and what to do",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_config_option(parser)
    parser.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        help="the daemon's unix socket, where it is not the configuration's; ACUs of scripts/acu-up and of the units are found "
        "without it",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also what is well, and what could not be looked at"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--ignore",
        metavar="CHECK",
        action="append",
        default=[],
        help="leave a check out, such as machine.clock, which is then not counted in the exit code; may be given again",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="judge a report that --save wrote, here or on another box (`-`: standard input), and not this box; what the "
        "configuration asks for is in it",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="write what was seen as a report for --report; `-`: print it, instead of a judgement, with exit code 0",
    )
    parser.add_argument(
        "--reference",
        choices=PAGES,
        help="print a page as Markdown: `checks`, docs/doctor.md, or `bios`, bios-checklist.md",
    )
    add_plan_options(parser)


def run(args: argparse.Namespace) -> int:
    """Look, judge and tell. Raises ConfigError for a configuration or report that cannot be used."""
    if args.reference is not None:
        from acu.commands.doctorview import reference

        sys.stdout.write(bios.checklist() if args.reference == "bios" else reference(CHECKS))
        return exits.OK
    if args.plan or args.card is not None:
        return run_plan(args, read_report(args.report) if args.report is not None else None)
    checks = without(args.ignore)
    examination = read_report(args.report) if args.report is not None else look(args.config, args.socket)
    if args.save == "-":
        sys.stdout.write(written(examination))
        return exits.OK
    if args.save is not None:
        save(examination, Path(args.save))
    judgement = judge(examination, checks, bios.entries)
    if args.json:
        out(json.dumps(as_json(examination, judgement), indent=2))
    else:
        from acu.commands.doctorview import drawn

        sys.stdout.write(drawn(examination, judgement, verbose=args.verbose))
    return EXITS[judgement.severity]


def without(ignored: list[str]) -> tuple[Check, ...]:
    """All checks but these. Raises ConfigError for a name that is none's."""
    ids = [check.id for check in CHECKS]
    problems = [
        f"--ignore: there is no check {name!r}: "
        + (f"did you mean {near}?" if near else "acu doctor --json names them")
        for name in ignored
        if name not in ids
        for near in [nearest(name, ids)]
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(check for check in CHECKS if check.id not in ignored)


def look(config: Path | None, socket: Path | None = None) -> Examination:
    """This box, against the configuration."""
    from acu.data.folder import check_data_folder  # not for a report from elsewhere
    from acu.doctor.examine import examine

    loaded = load(process_environment(), file=config, gpu_present=gpu_present())
    return examine(loaded.config, socket=socket, start=functools.partial(check_data_folder, file=loaded.file))


def as_json(examination: Examination, judgement: Judgement) -> dict[str, Any]:
    """What --json prints."""
    levels = [finding.level for finding in judgement.findings]
    return {
        "at": examination.at,
        "severity": judgement.severity,
        "counts": {level: levels.count(level) for level in ("error", "warning", "note")}
        | {"well": len(judgement.well)},
        **msgspec.to_builtins(judgement),
        "unread": list(examination.unread),
    }


def written(examination: Examination) -> str:
    """A report: the examination as JSON."""
    return msgspec.json.format(msgspec.json.encode(examination), indent=2).decode() + "\n"


def save(examination: Examination, path: Path) -> None:
    """Write a report. Raises ConfigError where the file cannot be written."""
    try:
        path.write_text(written(examination), encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"--save: {path} cannot be written: {error.strerror}"]) from error


def read_report(name: str) -> Examination:
    """A report that --save wrote. Raises ConfigError saying what is wrong with it."""
    what = "standard input" if name == "-" else name
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"--report: {what} cannot be read: {error.strerror}"]) from error
    if len(data) > MOST_BYTES:
        raise ConfigError(
            [f"--report: {what} is larger than {MOST_BYTES >> 20} MiB: it is no report of acu doctor --save"]
        )
    return parsed(data, what)


def parsed(data: bytes, what: str) -> Examination:
    """The bytes of a report. Raises ConfigError saying what is wrong with it."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([f"--report: {what} is no JSON, as acu doctor --save writes it: {error}"]) from error
    form = document.get("form") if isinstance(document, dict) else None
    if form is None:
        raise ConfigError([f"--report: {what} is no report of acu doctor: save one with acu doctor --save FILE"])
    if form != FORM:
        raise ConfigError(
            [f"--report: {what} is a report of form {json.dumps(form)}, this acu reads {FORM}: save it by this version"]
        )
    try:
        return msgspec.convert(document, Examination)
    except msgspec.ValidationError as error:
        raise ConfigError([f"--report: {what} is damaged: {error}"]) from error
