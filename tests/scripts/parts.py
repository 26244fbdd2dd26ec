"""The parts of an ACU (scripts/cgroup.sh, gpu.sh, disk.sh) as an administrator calls them, with a folder of the test's for what
they remember."""

import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the machine: needs root")


def part(
    script: str, *arguments: object, run_dir: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Call one. Of this environment it gets the path and nothing of ACU's."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ACU_", "CUDA_"))}
    return subprocess.run(
        [SCRIPTS / script, *map(str, arguments)],
        env=clean | {"ACU_RUN_DIR": str(run_dir)} | dict(environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """Make files below a folder; a text that begins with `->` is a link."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            path.symlink_to(text[2:])
        else:
            path.write_text(text)
    return root


@functools.cache
def fields(config: str) -> str:
    """What scripts/machine.sh reads of a configuration with this text, and its models: as acu-up hands it to the parts."""
    reads = 'source "$0/machine.sh"; verbs=; take_arguments 210 --config "$1"; read_fields; echo "$ACU_FIELDS"; '
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(config)
        file.flush()
        command = ["bash", "-euc", reads + 'echo "models $(field models)"', SCRIPTS, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
