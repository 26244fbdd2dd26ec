"""Handles: kept for their tenant, within the bounds, and through kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow.tools.errors import ToolFailed, UnknownHandle
from agentflow.tools.handles import HANDLE, HandleLimits, HandleStore
from tests.agentflow.tools.shelves import found, still_there


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


async def kept(handles: HandleStore, data: bytes = b"text", tenant: str = "ann", run_id: str = "run-1") -> str:
    return await handles.keep(tenant, run_id, data, "text/plain")


async def test_what_is_kept_is_found_under_a_short_handle(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    await handles.open()
    handle = await handles.keep("ann", "run-1", b"some text", "text/csv; charset=utf-8")
    assert HANDLE.fullmatch(handle)
    content = found(handles, "ann", handle)
    assert (content.read(), content.size, content.media_type) == (b"some text", 9, "text/csv; charset=utf-8")


async def test_a_file_that_a_call_wrote_is_adopted_and_not_copied(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    path = handles.new_path()
    path.write_bytes(b"\x89PNG")
    inode = path.stat().st_ino
    content = found(handles, "ann", await handles.adopt("ann", "run-1", path, "image/png"))
    assert (content.path.stat().st_ino, content.media_type, path.exists()) == (inode, "image/png", False)


async def test_another_tenants_handle_is_unknown(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    handle = await kept(handles)
    for tenant, name in (("bob", handle), ("ann", "h_000000000000"), ("ann", "../x"), ("", handle)):
        with pytest.raises(UnknownHandle):
            found(handles, tenant, name)
        with pytest.raises(UnknownHandle):
            handles.hold(tenant, name)


@pytest.mark.parametrize("tenant", ["../../escape", "/etc", ".", "", "making", "a/b\0c", "Å" * 500, "\ud800"])
async def test_no_name_of_a_tenant_or_run_escapes_the_folder(tmp_path: Path, tenant: str) -> None:
    handles = HandleStore(tmp_path / "handles")
    content = found(handles, tenant, await kept(handles, tenant=tenant, run_id=tenant))
    assert content.path.resolve().is_relative_to(tmp_path / "handles")
    assert all(path.is_relative_to(tmp_path / "handles") for path in files(tmp_path))


@pytest.mark.parametrize("media_type", ["../../x", "a" * 300, "", "tex\0t/plain", "a/b/c"])
async def test_no_media_type_harms_the_file_or_the_next_start(tmp_path: Path, media_type: str) -> None:
    handles = HandleStore(tmp_path)
    handle = await handles.keep("ann", "run-1", b"x", media_type)
    content = found(handles, "ann", handle)
    assert content.path.parent.parent == tmp_path
    again = HandleStore(tmp_path)
    await again.open()
    assert found(again, "ann", handle) == content


async def test_files_are_for_the_daemon_alone(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path / "handles")
    await handles.open()
    path = handles.new_path()
    path.write_bytes(b"x")
    path.chmod(0o666)
    content = found(handles, "ann", await handles.adopt("ann", "run-1", path, "text/plain"))
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (content.path, content.path.parent, tmp_path / "handles")]
    assert modes == [0o600, 0o700, 0o700]


async def test_only_a_plain_file_of_the_calls_own_is_adopted(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path / "handles")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    link, hard, folder, missing = (handles.new_path() for _ in range(4))
    link.symlink_to(secret)
    os.link(secret, hard)
    folder.mkdir()
    for path in (link, hard, folder, missing, secret):
        with pytest.raises(ToolFailed):
            await handles.adopt("ann", "run-1", path, "text/plain")
        await handles.discard(path)
    assert files(tmp_path) == [secret]
    assert secret.read_bytes() == b"secret"


async def test_a_flood_stays_within_the_bounds_and_the_oldest_go_first(tmp_path: Path) -> None:
    limits = HandleLimits(tenant_bytes=1000, total_bytes=2000, tenant_results=8)
    handles = HandleStore(tmp_path, limits)
    by_tenant = {
        tenant: [await kept(handles, b"x" * 100, tenant) for _ in range(20)] for tenant in ("ann", "bob", "cy", "dee")
    }
    assert handles.total_bytes == 2000
    assert sum(path.stat().st_size for path in files(tmp_path)) == 2000
    assert still_there(handles, "dee", by_tenant["dee"]) == by_tenant["dee"][-8:]
    assert still_there(handles, "ann", by_tenant["ann"]) == []
    big = await kept(handles, b"x" * 1000, "dee")
    assert still_there(handles, "dee", [*by_tenant["dee"], big]) == [big]


async def test_calls_at_once_stay_within_the_bounds_too(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path, HandleLimits(tenant_bytes=1000))
    names = await asyncio.gather(*(kept(handles, b"x" * 300) for _ in range(20)))
    assert len(set(names)) == 20
    assert len(still_there(handles, "ann", names)) == 3
    assert sum(path.stat().st_size for path in files(tmp_path)) == handles.total_bytes == 900


async def test_what_a_running_call_holds_stays_and_what_finds_no_room_is_refused(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path, HandleLimits(tenant_bytes=1000))
    held = await kept(handles, b"x" * 600)
    handles.hold("ann", held)
    for _ in range(3):
        await kept(handles, b"y" * 400)
    assert still_there(handles, "ann", [held]) == [held]
    with pytest.raises(ToolFailed, match="no room"):
        await kept(handles, b"z" * 401)
    assert found(handles, "ann", held).read() == b"x" * 600
    handles.release("ann", held)
    await kept(handles, b"z" * 401)
    assert still_there(handles, "ann", [held]) == []
    assert handles.total_bytes == sum(path.stat().st_size for path in files(tmp_path)) == 401


async def test_a_result_over_its_bound_is_refused_and_says_so(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path, HandleLimits(result_max_bytes=10))
    with pytest.raises(ToolFailed, match="11 bytes; at most 10"):
        await kept(handles, b"x" * 11)
    assert (files(tmp_path), handles.total_bytes) == ([], 0)


async def test_what_is_too_old_is_unknown_and_goes(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path, HandleLimits(keep_s=1000))
    handle = await kept(handles)
    path = found(handles, "ann", handle).path
    os.utime(path, (1.0, 1.0))
    again = HandleStore(tmp_path, HandleLimits(keep_s=1000))
    await again.open()
    with pytest.raises(UnknownHandle):
        found(again, "ann", handle)
    assert files(tmp_path) == []


async def test_what_becomes_too_old_is_unknown_at_once(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path, HandleLimits(keep_s=0.01))
    handle = await kept(handles)
    await asyncio.sleep(0.05)
    with pytest.raises(UnknownHandle):
        found(handles, "ann", handle)


async def test_the_age_of_what_a_call_wrote_counts_from_when_it_is_kept(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path, HandleLimits(keep_s=1000))
    path = handles.new_path()
    path.write_bytes(b"text")
    os.utime(path, (1.0, 1.0))
    handle = await handles.adopt("ann", "run-1", path, "text/plain")
    again = HandleStore(tmp_path, HandleLimits(keep_s=1000))
    await again.open()
    assert still_there(again, "ann", [handle]) == [handle]


async def test_what_two_calls_hold_of_a_forgotten_run_goes_with_the_last(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    handle = await kept(handles)
    content = handles.hold("ann", handle)
    handles.hold("ann", handle)
    await handles.forget("ann", "run-1")
    handles.release("ann", handle)
    assert content.read() == b"text"
    handles.release("ann", handle)
    assert (files(tmp_path), handles.total_bytes) == ([], 0)


async def test_a_forgotten_run_leaves_nothing_but_what_a_call_still_holds(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    first, second = await kept(handles), await kept(handles)
    other, bobs = await kept(handles, run_id="run-2"), await kept(handles, tenant="bob")
    content = handles.hold("ann", first)
    await handles.forget("ann", "run-1")
    assert content.read() == b"text"
    for handle in (first, second):
        with pytest.raises(UnknownHandle):
            found(handles, "ann", handle)
    handles.release("ann", first)
    assert files(tmp_path) == sorted(
        [found(handles, "ann", other).path, found(handles, "bob", bobs).path],
    )


async def test_a_folder_that_is_elsewhere_is_not_the_stores(tmp_path: Path) -> None:
    other = HandleStore(tmp_path / "other")
    path = found(other, "ann", await kept(other)).path
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / path.parent.name).symlink_to(path.parent)
    handles = HandleStore(tmp_path / "mine", HandleLimits(keep_s=0.0))
    await handles.open()
    assert (handles.total_bytes, path.read_bytes()) == (0, b"text")


async def test_an_erased_tenant_leaves_nothing(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    held, bobs = await kept(handles), await kept(handles, tenant="bob")
    handles.hold("ann", held)
    await handles.erase("ann")
    handles.release("ann", held)
    assert files(tmp_path) == [found(handles, "bob", bobs).path]
    assert handles.total_bytes == 4
    await handles.erase("nobody")


async def test_what_is_kept_while_its_tenant_is_erased_goes_too(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    keeping = asyncio.ensure_future(kept(handles))
    await asyncio.sleep(0)
    await handles.erase("ann")
    with pytest.raises(ToolFailed, match="erased"):
        await keeping
    assert (files(tmp_path), handles.total_bytes) == ([], 0)


async def test_a_cancelled_keeping_leaves_nothing(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    for turns in range(4):
        keeping = asyncio.ensure_future(kept(handles, b"x" * 100_000))
        for _ in range(turns):
            await asyncio.sleep(0)
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
    assert (files(tmp_path), handles.total_bytes) == ([], 0)


async def test_a_disk_that_fails_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    content = found(handles, "ann", await kept(handles))
    shelf = content.path.parent
    await handles.erase("ann")
    shelf.write_bytes(b"")  # where the tenant's folder should be
    with pytest.raises(OSError, match="exists"):
        await kept(handles)
    assert (handles.total_bytes, files(tmp_path)) == (0, [shelf])


async def test_a_start_finds_what_was_kept_in_its_order_and_leaves_strangers_alone(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    names = [await kept(handles, b"x" * 10, run_id=run) for run in ("run-1", "run-2", "run-1")]
    for age, name in enumerate(reversed(names)):
        os.utime(found(handles, "ann", name).path, (2e9 - age, 2e9 - age))
    shelf = found(handles, "ann", names[0]).path.parent
    (shelf / "notes.txt").write_bytes(b"mine")
    (tmp_path / "other").mkdir()
    again = HandleStore(tmp_path, HandleLimits(tenant_results=2))
    await again.open()
    assert still_there(again, "ann", names) == names[1:]
    await again.forget("ann", "run-1")
    assert still_there(again, "ann", names) == [names[1]]
    assert {path.name for path in files(tmp_path)} == {"notes.txt", found(again, "ann", names[1]).path.name}


CHILD = """
import asyncio, sys
from pathlib import Path
from agentflow.tools.handles import HandleStore

async def main():
    handles = HandleStore(Path(sys.argv[1]))
    await handles.open()
    async def flood():
        while True:
            print(await handles.keep("ann", "run-1", b"x" * 50_000, "text/plain"), flush=True)
    handles.new_path().write_bytes(b"half of a result")
    await asyncio.gather(*(flood() for _ in range(4)))

asyncio.run(main())
"""


def test_kill_9_leaves_whole_results_and_nothing_else_after_the_next_start(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = [child.stdout.readline().strip() for _ in range(20)]
    child.send_signal(signal.SIGKILL)
    told += child.stdout.read().split()
    child.stdout.close()
    child.wait()
    handles = HandleStore(tmp_path)
    asyncio.run(handles.open())
    assert still_there(handles, "ann", told) == told
    assert {path.stat().st_size for path in files(tmp_path)} == {50_000}
    assert handles.total_bytes == 50_000 * len(files(tmp_path))
