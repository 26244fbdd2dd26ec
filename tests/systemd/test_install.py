"""scripts/install: what it puts into a tree, what it keeps, what it takes away, and that it leaves nothing half done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from acu.http.auth import load_key_ring
from tests.systemd.trees import INSTALL, failing_tools, installed, new_tree, small_checkout, snapshot

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="scripts/install is root's"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd is not installed"),
]
CHANGING = ("chmod", "cp", "find", "install", "mkdir", "mv", "rm", "rmdir", "sed", "systemctl", "systemd-sysusers")
MARKER = "opt/acu/.acu-installed"
KEY = re.compile(r"^API key \(shown this once, and kept nowhere\): (sk-acu-[0-9a-f]{48})$", re.MULTILINE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree of an image."""
    return new_tree(tmp_path)


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """scripts/install of a small checkout."""
    return small_checkout(tmp_path) / "scripts" / "install"


def test_what_is_installed_is_taken_away_to_the_last_file(root: Path) -> None:
    before = snapshot(root)
    done = installed(root, "--cpu", "--namespace")
    assert done.returncode == 0, done.stderr
    assert (root / "opt/acu/scripts/setup").is_file()
    assert not list((root / "opt/acu").rglob("__pycache__"))
    assert not list((root / "opt/acu").glob("tests"))
    assert "acu:x:" in (root / "etc/passwd").read_text()
    wanted = {path.name for path in (root / "etc/systemd/system").glob("*.wants/*")}
    assert wanted == {"acu.target", "acu@0.service", "acu@0.socket"}
    assert {path.name for path in (root / "etc/systemd/system/acu@0.service.d").iterdir()} == {
        "cpu.conf",
        "namespace.conf",
    }
    gone = installed(root, "--uninstall", "--purge", install=root / "opt/acu/scripts/install")
    assert gone.returncode == 0, gone.stderr
    assert snapshot(root) == before


def test_the_key_is_shown_once_and_only_its_digest_is_kept(root: Path, install: Path) -> None:
    first = installed(root, install=install)
    shown = KEY.search(first.stdout)
    assert shown is not None, first.stderr
    file = root / "etc/acu/0.keys"
    assert (file.stat().st_mode & 0o7777, file.stat().st_uid) == (0o600, 0)
    assert shown[1] not in file.read_text()
    found = load_key_ring(file).find(shown[1])
    assert found is not None
    assert (found.name, found.scopes) == ("first", {"inference", "admin"})
    before = snapshot(root)
    again = installed(root, install=install)
    assert "API key" not in again.stdout
    assert snapshot(root) == before


def test_what_people_have_written_stays_with_an_upgrade_and_with_an_end(root: Path, install: Path) -> None:
    (install.parents[1] / "acu" / "old.py").touch()
    installed(root, install=install)
    mine = root / "etc/acu/0.yaml"
    mine.write_text("daemon: {drain_timeout_s: 5}\n")
    data = root / "var/lib/acu/0/data"
    data.mkdir(parents=True)
    (install.parents[1] / "acu" / "__init__.py").write_text("version = 2\n")
    (install.parents[1] / "acu" / "new.py").touch()
    (install.parents[1] / "acu" / "old.py").unlink()
    (root / "opt/acu/.venv").mkdir()
    assert installed(root, install=install).returncode == 0
    program = root / "opt/acu/acu"
    assert sorted(path.name for path in program.iterdir()) == ["__init__.py", "new.py"]
    assert (program / "__init__.py").read_text() == "version = 2\n"
    assert sorted(path.name for path in (root / "opt/acu").iterdir()) == [
        ".acu-installed",
        ".venv",
        "acu",
        "pyproject.toml",
        "scripts",
        "systemd",
    ]
    ended = installed(root, "--uninstall", install=install)
    assert "What stays: /etc/acu/0.yaml and .keys, /var/lib/acu/0 (data)" in ended.stderr
    assert mine.read_text() == "daemon: {drain_timeout_s: 5}\n"
    assert (root / "etc/acu/0.keys").exists()
    assert data.is_dir()
    assert not (root / "opt").exists()
    assert not list((root / "etc/systemd/system").iterdir())
    assert "API key" not in installed(root, install=install).stdout, "the key of before is that of now"


def test_one_of_two_goes_and_the_other_stays_whole(root: Path, install: Path) -> None:
    empty = snapshot(root)
    installed(root, install=install)
    alone = snapshot(root)
    assert installed(root, "1", "--gpu", "--namespace", install=install).returncode == 0
    assert (root / "opt/acu").is_dir()
    assert installed(root, "1", "--uninstall", "--purge", install=install).returncode == 0
    assert snapshot(root) == alone
    installed(root, "1", install=install)
    installed(root, "--uninstall", install=install)
    assert (root / "opt/acu").is_dir()
    last = installed(root, "1", "--uninstall", "--purge", install=install)
    assert "since other ACUs are or were here: /etc/acu/0.keys /etc/acu/0.yaml" in last.stderr
    assert "acu:x:" in (root / "etc/passwd").read_text()
    assert not (root / "opt").exists()
    installed(root, "--uninstall", "--purge", install=install)
    assert snapshot(root) == empty


def test_another_option_takes_the_place_of_the_former(root: Path, install: Path) -> None:
    installed(root, "--gpu", "--namespace", install=install)
    own = root / "etc/systemd/system/acu@0.service.d"
    assert {path.name for path in own.iterdir()} == {"gpu.conf", "namespace.conf"}
    installed(root, "--cpu", install=install)
    assert {path.name for path in own.iterdir()} == {"cpu.conf"}


def test_another_prefix_is_in_every_unit_and_found_again(root: Path, install: Path) -> None:
    empty = snapshot(root)
    assert installed(root, "--prefix", "/srv/acu", install=install).returncode == 0
    units = root / "usr/local/lib/systemd/system"
    assert not [path for path in units.rglob("*") if path.is_file() and "/opt/acu" in path.read_text()]
    assert "ExecStart=/srv/acu/.venv/bin/acu -c" in (units / "acu@.service").read_text()
    refused = installed(root, "1", "--prefix", "/opt/acu", install=install)
    assert "the program lies in /srv/acu, one for all ACUs of the box" in refused.stderr
    assert installed(root, "--uninstall", "--purge", install=install).returncode == 0
    assert snapshot(root) == empty


def settled(root: Path) -> dict[str, tuple[int, str]]:
    """What is there, but for the key, which is always another, and what the next run tidies up."""
    return {
        name: what
        for name, what in snapshot(root).items()
        if name != "etc/acu/0.keys" and not name.startswith(("opt/acu/.outgoing", "opt/acu/.leaving", MARKER))
    }


@pytest.mark.parametrize(
    ("upgrade", "failing"),
    [
        (False, ("chmod", "cp", "mv", "systemctl", "systemd-sysusers")),
        (True, ("find", "install", "mv", "rm", "systemctl")),
    ],
)
def test_whatever_fails_the_tree_is_as_it_was(
    tmp_path: Path, root: Path, install: Path, failing: tuple[str, ...], *, upgrade: bool
) -> None:
    if upgrade:
        installed(root, "--cpu", install=install)
        (install.parents[1] / "acu" / "__init__.py").write_text("version = 2\n")
        (install.parents[1] / "systemd" / "acu.slice").write_text("[Slice]\nCPUWeight=1\n")
        shutil.rmtree(root / "etc/systemd/system/sockets.target.wants")
    before, pristine = snapshot(root), tmp_path / "pristine"
    shutil.copytree(root, pristine, symlinks=True)
    failed, ended = tmp_path / "failed", []
    tools = failing_tools(tmp_path, failing, f"touch {failed}; exit 7")
    for number in range(1, 100):
        (tools / "count").write_text("0\n")
        failed.unlink(missing_ok=True)
        done = installed(root, "--gpu", install=install, PATH=f"{tools}:{os.environ['PATH']}", FAIL_AT=str(number))
        if done.returncode == 0:
            ended.append(settled(root))
            if not failed.exists():
                break
            shutil.rmtree(root)
            shutil.copytree(pristine, root, symlinks=True)
        else:
            assert snapshot(root) == before, f"the command with number {number}: {done.stderr}"
            assert KEY.search(done.stdout) is None
    assert not failed.exists()
    assert number - len(ended) >= 10, "most of them matter"
    for each in ended:
        assert each == ended[-1], "where one does not, all is done"


def test_an_interrupted_one_leaves_nothing(tmp_path: Path, root: Path, install: Path) -> None:
    before = snapshot(root)
    tools = failing_tools(tmp_path, CHANGING, "kill -TERM 0")
    for number in (5, 12, 20, 40):
        (tools / "count").write_text("0\n")
        done = installed(root, install=install, PATH=f"{tools}:{os.environ['PATH']}", FAIL_AT=str(number))
        assert done.returncode == 143, f"{number}: {done.stderr}"
        assert snapshot(root) == before


@pytest.mark.parametrize("upgrade", [False, True])
def test_one_that_was_killed_is_finished_by_the_next(
    tmp_path: Path, root: Path, install: Path, *, upgrade: bool
) -> None:
    empty = snapshot(root)
    if upgrade:
        installed(root, install=install)
        (install.parents[1] / "acu" / "__init__.py").write_text("version = 2\n")
        (install.parents[1] / "acu" / "new.py").touch()
    whole = tmp_path / "whole"
    shutil.copytree(root, whole, symlinks=True)
    assert installed(whole, install=install).returncode == 0
    tools = failing_tools(tmp_path, ("cp", "install", "mkdir", "mv", "systemctl"), "kill -9 0")
    killed = 0
    for number in range(2, 40, 3):
        (tools / "count").write_text("0\n")
        done = installed(root, install=install, PATH=f"{tools}:{os.environ['PATH']}", FAIL_AT=str(number))
        if done.returncode == 0:
            break
        killed += 1
    assert killed >= 2
    again = installed(root, install=install)
    assert again.returncode == 0, again.stderr
    assert settled(root) == settled(whole)
    assert installed(root, "--uninstall", "--purge", install=install).returncode == 0
    assert snapshot(root) == empty


def test_a_dry_run_prints_the_commands_and_does_none(root: Path, install: Path) -> None:
    before = snapshot(root)
    done = installed(root, "3", "--gpu", "--namespace", "--dry-run", install=install)
    assert done.returncode == 0, done.stderr
    assert snapshot(root) == before
    for line in (
        f"'systemd-sysusers' '--root={root}' '{root}/usr/local/lib/sysusers.d/acu.conf'",
        f"'systemctl' '--root={root}' '--quiet' 'enable' 'acu.target' 'acu@3.socket' 'acu@3.service'",
        f"'mkdir' '-m' '755' '{root}/etc/systemd/system/acu-host@3.service.d'",
    ):
        assert line in done.stdout.splitlines()
    installed(root, install=install)
    before = snapshot(root)
    assert installed(root, "--uninstall", "--purge", "--dry-run", install=install).returncode == 0
    assert snapshot(root) == before


def refused(*words: str, install: Path = INSTALL) -> str:
    done = subprocess.run([str(install), *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="systemd runs here")
def test_a_box_without_systemd_is_told_what_to_use_instead() -> None:
    told = refused("2")
    assert f"systemd does not run this box (process 1 is {Path('/proc/1/comm').read_text().strip()})" in told
    assert "Without it: scripts/acu-up 2. Into the tree of an image: --root DIR." in told


def test_everything_that_is_wrong_is_told_at_once(root: Path) -> None:
    (root / "opt/acu").mkdir(parents=True)
    (root / "opt/acu/theirs").touch()
    told = refused("256", "--root", str(root))
    assert "256 is no number of an ACU: 0 to 255." in told
    assert f"{root}/opt/acu holds something else" in told
    told = refused("--python", "/root/venv/bin/python", "--no-environment", "--prefix", "opt")
    assert "/root/venv/bin/python is out of the daemon's sight" in told
    assert "--no-environment is for --root" in told
    assert "--prefix: opt is no absolute path" in told
    assert "unknown option --purg;" in refused("--purg")
    assert "--prefix: opt is no absolute path" in refused("--prefix=opt")
    assert "--prefix needs a value." in refused("--prefix=")
    assert "--purge takes no value" in refused("--purge=yes")
    assert "--slice: many is no number from 0 to 255" in refused("--slice=many")
    assert "one ACU at a time: 1 or 2?" in refused("1", "2")


def test_help_is_the_head_of_the_script() -> None:
    shown = subprocess.run([INSTALL, "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    assert "scripts/install [N] --uninstall [--purge]" in shown.stdout
    assert "set -euo" not in shown.stdout
