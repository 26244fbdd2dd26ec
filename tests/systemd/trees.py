"""Trees that scripts/install installs into, and what is in them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from tests.acu.running import ROOT

INSTALL = ROOT / "scripts" / "install"
OPENED_AT_RANDOM = {"etc/.pwd.lock", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-"}
"""What the tools that make users leave beside their files."""


def installed(root: Path, *words: str, install: Path = INSTALL, **environ: str) -> subprocess.CompletedProcess[str]:
    """scripts/install into a tree, whose environment is left out."""
    command = [str(install), *words, "--root", str(root)]
    if "--uninstall" not in words:
        command.append("--no-environment")
    return subprocess.run(
        command,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        start_new_session=True,
    )


def new_tree(folder: Path) -> Path:
    """The tree of an image: accounts, and a folder or two."""
    root = folder / "image"
    (root / "etc" / "systemd" / "system").mkdir(parents=True)
    (root / "usr" / "lib").mkdir(parents=True)
    for name, line in (
        ("passwd", "root:x:0:0:root:/root:/bin/sh"),
        ("group", "root:x:0:"),
        ("shadow", "root:*:1::::::"),
    ):
        (root / "etc" / name).write_text(line + "\n")
    (root / "etc" / "gshadow").write_text("root:*::\n")
    return root


def snapshot(root: Path) -> dict[str, tuple[int, str]]:
    """Each path's mode, and its content or where it leads."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name in OPENED_AT_RANDOM:
            continue
        mode = path.lstat().st_mode
        content = ""
        if stat.S_ISLNK(mode):
            content = str(path.readlink())
        elif stat.S_ISREG(mode):
            content = path.read_text(errors="surrogateescape")
        found[name] = (mode, content)
    return found


def small_checkout(folder: Path) -> Path:
    """A checkout with all that installs and little to install."""
    root = folder / "checkout"
    for name in ("scripts", "systemd"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "acu").mkdir()
    (root / "acu" / "__init__.py").write_text("version = 1\n")
    (root / "pyproject.toml").write_text("[project]\n")
    return root


def failing_tools(folder: Path, names: tuple[str, ...], action: str) -> Path:
    """A folder for the front of PATH, whose tools do `action` when they are the $FAIL_AT-th that is called, else their work."""
    tools = folder / "tools"
    tools.mkdir()
    for name in names:
        real = shutil.which(name)
        assert real is not None
        (tools / name).write_text(
            f"#!/bin/sh\nread n <{tools}/count; n=$((n + 1)); echo $n >{tools}/count\n"
            f'if [ $n = "$FAIL_AT" ]; then {action}; fi\nexec {real} "$@"\n'
        )
        (tools / name).chmod(0o755)
    return tools
