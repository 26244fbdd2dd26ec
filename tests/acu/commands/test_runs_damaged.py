"""acu runs, of what cannot be read, and of what is no run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from acu.cli import main
from tests.acu.http.library_serving import key_of
from tests.acu.http.run_serving import serving_runs
from tests.acu.http.test_damage import spoil_log


async def test_a_run_that_is_damaged_or_is_none_is_told_by_name(tmp_path: Path) -> None:
    async with serving_runs(tmp_path) as desk:
        bad, good = await desk.run("hello"), await desk.run("hello")
        await spoil_log(desk.state, bad)

        async def acu(*words: str) -> tuple[int | None, str]:
            command = [sys.executable, "-m", "acu", "runs", *words, "--url", desk.served.url]
            child = await asyncio.create_subprocess_exec(
                *command, "--api-key", key_of("alice"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            said, _ = await child.communicate()
            return child.returncode, said.decode()

        code, listed = await acu("list")
        assert code == 0
        assert good in listed
        assert bad in listed
        says = f"acu: What is stored of the run {bad} is damaged: restore a backup, or delete it. The daemon's log says more.\n"
        for words in (["show", bad], ["events", bad[:-1]], ["events", "--follow", bad]):
            assert await acu(*words) == (1, says)
        assert await acu("rm", bad) == (0, f"{bad}: removed\n")
        says = f"acu: There is no run '{bad}', or it is not kept any more.\n"
        assert await acu("show", bad) == (1, says)
        await spoil_log(desk.state, good)
        removed = await acu("rm", "--status", "completed", "--yes")
        assert removed == (0, f"{good}: removed\n1 of 1 runs\n"), (
            "what cannot be read can be removed by its status, too"
        )


@pytest.mark.parametrize("wanted", ["x" * 200, "run_F", "../x"])
def test_what_no_id_begins_with_is_not_asked_for(wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", wanted, "--socket", "/nowhere"]) == 1
    assert capsys.readouterr().err == f"acu: no run's id begins with {wanted[:64]!r}: `acu runs list` shows them\n"


@pytest.mark.parametrize("wanted", ["", "run_", "resp_"])
@pytest.mark.parametrize("action", ["show", "rm", "cancel", "approve"])
def test_what_is_empty_means_no_run(action: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", action, wanted, "--socket", "/nowhere"]) == 1
    assert capsys.readouterr().err == f"acu: {wanted!r} names no run: `acu runs list` shows them\n"
