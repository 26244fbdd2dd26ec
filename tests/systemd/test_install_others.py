"""scripts/install beside what is not its own: folders, files, users and links of others stay as they are."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.smalldisk import small_disk
from tests.systemd.trees import failing_tools, installed, new_tree, small_checkout, snapshot

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="scripts/install is root's"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd is not installed"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree of an image."""
    return new_tree(tmp_path)


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """scripts/install of a small checkout."""
    return small_checkout(tmp_path) / "scripts" / "install"


def refused(root: Path, *words: str, install: Path) -> str:
    """What is said against it, and that nothing was done."""
    before = snapshot(root)
    done = installed(root, *words, install=install)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert snapshot(root) == before
    return done.stderr


def project(folder: Path) -> Path:
    """Somebody's project, which looks like ACU to whoever looks at names alone."""
    for name in ("acu", "scripts", ".venv", ".incoming"):
        (folder / name).mkdir(parents=True)
        (folder / name / "mine").write_text("mine\n")
    (folder / "pyproject.toml").write_text('[project]\nname = "acu"\n')
    return folder


@pytest.mark.parametrize(
    "content", ["a project", "a file", "a hidden file", "a link to nothing", "what a run before may have left"]
)
def test_a_folder_that_holds_anything_is_never_taken_nor_taken_away(root: Path, install: Path, content: str) -> None:
    folder = root / "srv" / "theirs"
    folder.mkdir(parents=True)
    if content == "a project":
        project(folder)
    elif content == "a link to nothing":
        (folder / "link").symlink_to("/nowhere")
    elif content == "what a run before may have left":
        (folder / ".outgoing").mkdir()
    else:
        (folder / ("file" if content == "a file" else ".file")).touch()
    assert f"{folder} holds something else, and nothing is put beside it" in refused(
        root, "--prefix", "/srv/theirs", install=install
    )
    before = snapshot(root)
    for words in ((), ("--purge",)):
        done = installed(root, "--uninstall", "--prefix", "/srv/theirs", *words, install=install)
        assert f"{folder} is not what scripts/install made" in done.stderr
        assert snapshot(root) == before


def test_folders_of_everybody_and_those_that_the_daemon_does_not_see_are_no_prefix(root: Path, install: Path) -> None:
    for name in ("opt", "usr/local", "home/ann", "var/lib"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "usr/local/bin").mkdir()
    (root / "afile").touch()
    told = {
        "/": "holds something else",
        "/opt": "is for all programs",
        "/opt/../opt/.": "is for all programs",
        "/usr/local": "holds something else",
        "/afile": "holds something else",
        "/home/ann": "out of the daemon's sight",
        "/home/ann/acu": "out of the daemon's sight",
        "/tmp/acu": "out of the daemon's sight",
        "/run/acu": "out of the daemon's sight",
        "/var/lib/acu/0": "is for other things",
        "/etc/acu": "is for other things",
        "/opt/a b": "is no absolute path of letters",
        "/opt/a\nb": "is no absolute path of letters",
        "/opt/a&b": "is no absolute path of letters",
        "/opt/a%ib": "is no absolute path of letters",
        "opt/acu": "is no absolute path of letters",
    }
    for prefix, why in told.items():
        assert why in refused(root, "--prefix", prefix, install=install), prefix
    (root / "srv/ann").mkdir(parents=True)
    os.chown(root / "srv/ann", 12345, 12345)
    assert "who could change what root runs" in refused(root, "--prefix", "/srv/ann", install=install)


def test_a_checkout_is_not_its_own_prefix_nor_around_it(tmp_path: Path) -> None:
    root = new_tree(tmp_path)
    (root / "srv").mkdir()
    install = small_checkout(root / "srv") / "scripts" / "install"
    assert "holds something else" in refused(root, "--prefix", "/srv/checkout", install=install)
    assert "lies in the checkout" in refused(root, "--prefix", "/srv/checkout/acu/here", install=install)


def test_a_link_is_followed_where_it_stays_in_the_tree_and_never_out_of_it(
    tmp_path: Path, root: Path, install: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "opt").mkdir()
    for target in (outside, Path("../../outside")):
        (root / "opt/acu").symlink_to(target)
        assert f"leads out of {root}, to {outside}" in refused(root, install=install)
        (root / "opt/acu").unlink()
    assert not list(outside.iterdir())
    (root / "data/acu").mkdir(parents=True)
    (root / "opt/acu").symlink_to("../data/acu")
    before = snapshot(root)
    assert installed(root, install=install).returncode == 0
    assert (root / "data/acu/pyproject.toml").is_file()
    assert installed(root, "--uninstall", "--purge", install=install).returncode == 0
    assert snapshot(root) == before
    (root / "data/acu/theirs").touch()
    assert "holds something else" in refused(root, install=install)


def test_what_others_put_into_the_program_stays_with_an_upgrade_and_with_an_end(root: Path, install: Path) -> None:
    for name in ("examples", "docs"):
        (install.parents[1] / name).mkdir()
        (install.parents[1] / name / "a.md").touch()
    installed(root, install=install)
    program = root / "opt/acu"
    theirs = (
        "models/big/weights",
        "acu/mine.py",
        "acu/their own\nfolder/data",
        "docs/mine.md",
        "examples/deep/er/notes",
        ".hidden",
    )
    for name in theirs:
        (program / name).parent.mkdir(parents=True, exist_ok=True)
        (program / name).write_text(name)
    (program / "acu/__pycache__").mkdir()
    (program / "acu/__pycache__/__init__.cpython-312.pyc").touch()
    (program / "acu/link").symlink_to("/nowhere")
    shutil.rmtree(install.parents[1] / "examples")  # a version that has no examples, and more documents
    (install.parents[1] / "acu" / "__init__.py").write_text("version = 2\n")
    (install.parents[1] / "docs" / "mine.md").write_text("the document\n")
    done = installed(root, install=install)
    assert done.returncode == 0, done.stderr
    assert "opt/acu/docs/mine.md is not ACU's, and its place is taken: it stays as " in done.stderr
    assert (program / "docs/mine.md").read_text() == "the document\n"
    assert (program / "acu/__init__.py").read_text() == "version = 2\n"
    assert not (program / "examples/a.md").exists()
    kept = {name.replace("docs/mine.md", "docs/mine.md.kept"): name for name in theirs}
    for name, text in kept.items():
        assert (program / name).read_text() == text
    assert installed(root, install=install).returncode == 0
    ended = installed(root, "--uninstall", "--purge", install=install)
    assert ended.returncode == 0, ended.stderr
    assert f"What others have put into {program} stays: .hidden, acu, docs, examples, models." in ended.stderr
    left = {str(path.relative_to(program)) for path in program.rglob("*") if path.is_file() or path.is_symlink()}
    assert left == {*kept, "acu/link"}


def test_what_stands_where_a_new_part_goes_is_not_replaced(root: Path, install: Path) -> None:
    installed(root, install=install)
    (root / "opt/acu/docs").write_text("my documents\n")
    (install.parents[1] / "docs").mkdir()
    assert "opt/acu/docs is not ACU's, and stands where a part of this version goes" in refused(root, install=install)


def test_what_others_put_there_meanwhile_survives_a_run_that_fails(tmp_path: Path, root: Path, install: Path) -> None:
    (root / "opt/acu").mkdir(parents=True)
    tools = failing_tools(
        tmp_path, ("systemctl",), f"mkdir -p {root}/opt/acu/acu; touch {root}/opt/acu/acu/mine; exit 7"
    )
    (tools / "count").write_text("0\n")
    path = f"{tools}:{os.environ['PATH']}"
    assert installed(root, install=install, PATH=path, FAIL_AT="1").returncode == 7
    assert [path.name for path in (root / "opt/acu").rglob("*")] == ["acu", "mine"]
    shutil.rmtree(root / "opt/acu")
    installed(root, install=install)
    shutil.rmtree(root / "etc/systemd/system/sockets.target.wants")
    (install.parents[1] / "acu" / "__init__.py").write_text("version = 2\n")
    (tools / "count").write_text("0\n")
    failed = installed(root, install=install, PATH=path, FAIL_AT="1")
    assert failed.returncode == 7, failed.stderr
    assert (root / "opt/acu/acu/__init__.py").read_text() == "version = 1\n"
    assert list((root / "opt/acu").rglob("mine"))


def test_a_program_of_before_there_was_a_marker_is_upgraded(root: Path, install: Path) -> None:
    (install.parents[1] / "pyproject.toml").write_text('[project]\nname = "acu"\n')
    installed(root, install=install)
    (root / "opt/acu/.acu-installed").unlink()
    (root / "opt/acu/notes").touch()
    (install.parents[1] / "acu" / "__init__.py").write_text("version = 2\n")
    assert installed(root, install=install).returncode == 0
    assert (root / "opt/acu/acu/__init__.py").read_text() == "version = 2\n"
    (root / "opt/acu/.acu-installed").unlink()
    assert installed(root, "--uninstall", install=install).returncode == 0
    assert [path.name for path in (root / "opt/acu").iterdir()] == ["notes"]


@pytest.mark.parametrize(
    "file",
    [
        "usr/local/lib/systemd/system/acu.target",
        "usr/local/lib/sysusers.d/acu.conf",
        "etc/systemd/system/acu@0.service.d/gpu.conf",
        "etc/systemd/system/acu@0.service.d/binding.conf",
    ],
)
def test_units_and_drop_ins_of_others_are_not_replaced(root: Path, install: Path, file: str) -> None:
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text("# mine\n")
    assert f"{root}/{file} was not put there by scripts/install" in refused(root, "--cpu", install=install)
    shutil.rmtree((root / file).parent)
    installed(root, install=install)
    own = root / "etc/systemd/system/acu@0.service.d/override.conf"
    own.write_text("[Service]\nNice=1\n")
    ended = installed(root, "--uninstall", "--purge", install=install)
    assert f"What others have put into {own.parent} stays: override.conf." in ended.stderr
    assert own.exists()


def test_a_user_and_a_group_that_were_there_stay_with_their_numbers(root: Path, install: Path) -> None:
    with (root / "etc/passwd").open("a") as file:
        file.write("acu:x:4711:4712:Ann Cu:/home/acu:/bin/bash\n")
    with (root / "etc/group").open("a") as file:
        file.write("acu:x:4712:ann\n")
    before = snapshot(root)
    done = installed(root, install=install)
    assert "The user acu was there before (number 4711)" in done.stderr
    ended = installed(root, "--uninstall", "--purge", install=install)
    assert "The user acu was there before, and stays." in ended.stderr
    assert snapshot(root) == before
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nacu:x:0:0::/:/bin/sh\n")
    assert "the user acu has the number 0: the daemon would be root" in refused(root, install=install)


def test_a_group_that_was_there_stays_when_its_user_goes(root: Path, install: Path) -> None:
    with (root / "etc/group").open("a") as file:
        file.write("acu:x:4712:\n")
    installed(root, install=install)
    assert "acu:x:" in (root / "etc/passwd").read_text()
    ended = installed(root, "--uninstall", "--purge", install=install)
    assert "The group acu was there before, and stays." in ended.stderr
    assert "acu:" not in (root / "etc/passwd").read_text()
    assert "acu:x:4712:" in (root / "etc/group").read_text()


def test_a_purge_leaves_links_and_what_acu_up_remembers(root: Path, install: Path) -> None:
    installed(root, install=install)
    (root / "nvme/data").mkdir(parents=True)
    (root / "var/lib/acu").mkdir(parents=True)
    (root / "var/lib/acu/0").symlink_to("../../../nvme/data")
    (root / "nvme/data/truth").touch()
    (root / "run/acu/7.was").mkdir(parents=True)
    (root / "run/acu/7.was/gpu").write_text("0\n")
    (root / "var/lib/acu/.other").mkdir()
    ended = installed(root, "--uninstall", "--purge", install=install)
    assert ended.returncode == 0, ended.stderr
    assert "var/lib/acu/0 stays, with what it leads to: ../../../nvme/data." in ended.stderr
    assert (root / "nvme/data/truth").exists()
    assert (root / "run/acu/7.was/gpu").exists()
    assert "since other ACUs are or were here: /var/lib/acu/.other" in ended.stderr


def test_options_that_do_not_go_together_are_told(root: Path, install: Path) -> None:
    assert "--purge is for --uninstall." in refused(root, "--purge", install=install)
    assert "--gpu or --cpu?" in refused(root, "--gpu", "--cpu", install=install)
    assert "--namespace means nothing with --uninstall." in refused(root, "--uninstall", "--namespace", install=install)
    assert "is no Python 3.11, 3.12 or 3.13" in refused(root, "--python", "/usr/bin/nothing", install=install)
    for folder, why in (("/", "is this box itself"), ("image", "is no folder with"), ("/nowhere", "is no folder with")):
        done = subprocess.run([install, "--root", folder], capture_output=True, text=True, check=False)
        assert why in done.stderr
    spaced = new_tree(root / "an image\nof two lines")
    before = snapshot(spaced)
    assert installed(spaced, install=install).returncode == 0
    assert installed(spaced, "--uninstall", "--purge", install=install).returncode == 0
    assert snapshot(spaced) == before


def test_two_at_once_are_done_one_after_the_other(root: Path, install: Path) -> None:
    command = [str(install), "--no-environment", "--root", str(root)]
    both = [
        subprocess.Popen([*command, number], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in ("228", "229")
    ]
    told = [each.communicate(timeout=60) for each in both]
    assert [each.returncode for each in both] == [0, 0], told
    assert any("waiting for another run that is at work here" in errors for _, errors in told)
    for number in ("228", "229"):
        assert (root / f"etc/acu/{number}.keys").is_file()
        assert installed(root, number, "--uninstall", "--purge", install=install).returncode == 0
    assert not (root / "opt").exists()


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_nobody_reads_leaves_nothing(tmp_path: Path, root: Path, install: Path, how: int) -> None:
    before = snapshot(root)
    go = tmp_path / "go"
    tools = failing_tools(tmp_path, ("systemctl",), f"touch {go}; sleep 60")
    (tools / "count").write_text("0\n")
    reader, writer = os.pipe()
    with subprocess.Popen(
        [str(install), "--no-environment", "--root", str(root)],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "FAIL_AT": "1"},
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
        start_new_session=True,
    ) as process:
        os.close(writer)
        while not go.exists():
            time.sleep(0.01)
        os.close(reader)
        os.killpg(process.pid, how)
        assert process.wait(60) in {128 + how, 128 + signal.SIGPIPE}
    assert snapshot(root) == before


def test_a_key_that_nobody_has_seen_is_made_anew(tmp_path: Path, root: Path, install: Path) -> None:
    tools = failing_tools(tmp_path, ("systemctl",), "kill -9 0")
    (tools / "count").write_text("0\n")
    killed = installed(root, install=install, PATH=f"{tools}:{os.environ['PATH']}", FAIL_AT="1")
    assert (killed.returncode, killed.stdout) == (-9, "")
    unseen = (root / "etc/acu/0.keys").read_text()
    again = installed(root, install=install)
    assert "API key (shown this once" in again.stdout
    seen = (root / "etc/acu/0.keys").read_text()
    assert seen != unseen
    assert "Nobody has seen" not in seen
    assert "API key" not in installed(root, install=install).stdout
    assert (root / "etc/acu/0.keys").read_text() == seen


def test_a_disk_that_is_full_leaves_the_tree_as_it_was(tmp_path: Path, install: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        root = new_tree(disk)
        before = snapshot(root)
        (install.parents[1] / "acu" / "large").write_bytes(bytes(16 << 20))
        done = installed(root, install=install)
        assert done.returncode != 0
        assert "No space left on device" in done.stderr
        assert snapshot(root) == before
        (install.parents[1] / "acu" / "large").write_bytes(bytes(3 << 20))
        assert installed(root, install=install).returncode == 0
        before = snapshot(root)
        (install.parents[1] / "acu" / "__init__.py").write_text("version = 2\n")
        (install.parents[1] / "acu" / "larger").write_bytes(bytes(2 << 20))
        done = installed(root, install=install)
        assert done.returncode != 0, "the former and the new have not room at once"
        assert snapshot(root) == before


@pytest.mark.parametrize("ending", [False, True])
def test_wherever_it_is_killed_the_next_run_has_all_of_others_and_of_its_own(
    tmp_path: Path, root: Path, install: Path, *, ending: bool
) -> None:
    installed(root, install=install)
    theirs = ("models/weights", "acu/mine.py", "docs/notes")
    for name in theirs:
        (root / "opt/acu" / name).parent.mkdir(exist_ok=True)
        (root / "opt/acu" / name).write_text("mine\n")
    (install.parents[1] / "acu" / "__init__.py").write_text("version = 2\n")
    pristine, killed = tmp_path / "pristine", 0
    shutil.copytree(root, pristine, symlinks=True)
    names = ("cp", "find", "mkdir", "mv", "rm", "rmdir", "xargs")
    tools = failing_tools(tmp_path, names, "kill -9 0")
    words = ("--uninstall", "--purge") if ending else ()
    for number in range(1, 60, 2):
        (tools / "count").write_text("0\n")
        path = f"{tools}:{os.environ['PATH']}"
        done = installed(root, *words, install=install, PATH=path, FAIL_AT=str(number))
        if done.returncode == 0:
            break
        killed += 1
        again = installed(root, *words, install=install)
        assert again.returncode == 0, f"{number}: {again.stderr}"
        files = {str(file.relative_to(root / "opt/acu")) for file in (root / "opt/acu").rglob("*") if file.is_file()}
        assert files >= set(theirs), number
        if ending:
            assert files == set(theirs), number
        else:
            assert (root / "opt/acu/acu/__init__.py").read_text() == "version = 2\n"
            assert not [name for name in files if name.startswith((".incoming", ".outgoing", ".leaving"))]
        shutil.rmtree(root)
        shutil.copytree(pristine, root, symlinks=True)
    assert killed >= 5
