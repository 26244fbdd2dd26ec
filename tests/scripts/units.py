"""ACUs in a box of a test's: two numbers with a configuration each, and how a test talks to their daemons."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.scripts.box import ROOT, SCRIPTS, Box, made_box

ACU = ROOT / ".venv" / "bin" / "acu"
UP, DOWN, NETNS = SCRIPTS / "acu-up", SCRIPTS / "acu-down", SCRIPTS / "netns.sh"
ONE, TWO = 230, 231
COUNT = "0123456789 " * 15


@contextlib.contextmanager
def box_of_units(tmp_path: Path) -> Iterator[Box]:
    """With a configuration of each ACU where acu-up looks for it."""
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps({"rules": [{"match": "count", "answer": COUNT, "tokens_per_s": 100}]}))
    model = {"model": "scripted", "engine": "scripted", "script": str(script)}
    with made_box(ONE, TWO) as box:
        for number in (ONE, TWO):
            config = tmp_path / f"{number}.yaml"
            config.write_text(
                json.dumps(
                    {
                        "models": {"large": model},
                        "gpu": {"compute_mode": "keep", "model_cache_dir": str(tmp_path / "models")},
                        "data_plane": {"path": str(tmp_path / f"data-{number}")},
                    }
                )
            )
            box.run("install", "-D", config, f"/etc/acu/{number}.yaml")
        yield box


def socket(number: int) -> str:
    return f"/run/acu/{number}/acu.sock"


def ask(box: Box, number: int, question: str) -> str:
    return box.run(ACU, "chat", "--socket", socket(number), "--once", question)


def asked(box: Box, number: int, question: str) -> subprocess.Popen[str]:
    """A chat whose answer has begun."""
    chat = box.start(ACU, "chat", "--socket", socket(number), "--once", question)
    assert chat.stdout
    assert chat.stdout.read(3)
    return chat


def daemons(box: Box, number: int) -> list[int]:
    return [int(pid) for pid in box.run("ip", "netns", "pids", f"acu{number}").split()]


def kill(box: Box, name: str, *pids: int) -> None:
    box.run("bash", "-c", f"kill -{name} -- {' '.join(map(str, pids))}")


def until(holds: Callable[[], bool]) -> None:
    for _ in range(200):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to hold")


def open_root(box: Box) -> None:
    """Let others look into /root, where the Python that the tests run on may lie."""
    box.run("mkdir", "-p", "/run/box/root", "/run/box/rootwork")
    folders = "lowerdir=/root,upperdir=/run/box/root,workdir=/run/box/rootwork"
    box.run("mount", "-t", "overlay", "overlay", "-o", folders, "/root")
    box.run("chmod", "755", "/root")
