"""Files of the data plane's folder: what counts as one, what manifests say of them, and how they are erased."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dataplane.care.erasure import erase
from dataplane.care.inspection import verify
from dataplane.cold import archive_position as positions
from dataplane.cold import attachments, filelist, manifest
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_erasure import Subject, look_again
from dataplane.cold.attachments import Attachment, Part, tenant_folder
from dataplane.cold.bucket import Bucket
from dataplane.cold.tier import default_cold_folder
from dataplane.cold_config import ColdConfig
from dataplane.errors import Conflict, Damaged
from dataplane.state import logmanifest
from dataplane.store import opened
from tests.dataplane.attached import Box, attachment, brought_back, files, listed, made, newest, objects
from tests.dataplane.boxes import Tenant, local_bucket
from tests.dataplane.planes import config


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return local_bucket(tmp_path / "cold")


@pytest.fixture
def box(tmp_path: Path, bucket: Bucket) -> Iterator[Box]:
    made = Box(tmp_path / "data", bucket)
    yield made
    made.close()


async def test_a_deleted_file_goes_with_the_last_manifest_that_names_it(box: Box, bucket: Bucket) -> None:
    path = box.file("alice", "file-1", b"deleted soon")
    box.file("alice", "file-2", b"the same")
    box.file("bob", "file-3", b"the same")
    await box.archiver.archive()
    own = (await attachment(bucket, "file-1")).parts[0].name
    shared = (await attachment(bucket, "file-2")).parts[0].name
    path.unlink()
    box.path("alice", "file-2").unlink()
    removed = 0
    for _ in range(3):
        Tenant(box.rocks, "alice").put_state("session", os.urandom(8))
        removed += (await box.archiver.archive()).removed
    assert own not in await objects(bucket)
    assert removed == 4  # the file, the first manifest, a range of the state, the list of alice's files
    assert shared in await objects(bucket), "another file has the same content"
    assert await manifest.verify(bucket, deep=True) == []


async def test_an_erased_tenants_files_are_in_no_object(box: Box, bucket: Bucket, tmp_path: Path) -> None:
    Tenant(box.rocks, "bob").put_state("session", b"bob says")
    box.file("alice", "file-1", b"alice's secret")
    box.file("bob", "file-2", b"bob's own")
    await box.archiver.archive()
    gone = (await attachment(bucket, "file-1")).parts[0].name
    Tenant(box.rocks, "alice").drop_all()
    with pytest.raises(Conflict, match="the box still has files of alice"):
        await box.archiver.erase("alice")
    _, left = await look_again(bucket, Subject.of("alice", None, None))
    assert "still names the tenant" in left[0].what
    assert attachments.remove_tenant(box.folder, "alice") == 1
    receipt = await box.archiver.erase("alice")
    assert receipt.left == ()
    assert gone in receipt.removed
    cold = tmp_path / "cold"
    assert not [path for path in cold.rglob("*") if path.is_file() and b"alice's secret" in path.read_bytes()]
    assert not [path for path in cold.rglob("*.json") if tenant_folder("alice").encode() in path.read_bytes()]
    await brought_back(bucket, tmp_path / "new")
    assert files(tmp_path / "new") == files(box.folder)


def test_a_tenants_files_go_and_nobody_elses(tmp_path: Path) -> None:
    for tenant in ("alice", "bob"):
        path = tmp_path / "library" / "files" / tenant_folder(tenant) / "file-1"
        path.parent.mkdir(parents=True)
        path.write_bytes(tenant.encode())
    assert attachments.remove_tenant(tmp_path, "alice") == 1
    assert attachments.remove_tenant(tmp_path, "alice") == 0
    assert [data for data, _ in files(tmp_path).values()] == [b"bob"]
    assert attachments.of_tenant(tmp_path, "alice") == []
    assert len(attachments.of_tenant(tmp_path, "bob")) == 1


async def test_what_is_no_finished_file_is_not_archived(box: Box, bucket: Bucket, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not of this house")
    box.file("alice", ".tmp-half", b"ha")
    box.path("alice", "link").symlink_to(secret)
    os.mkfifo(box.path("alice", "pipe"))
    (box.folder / "library" / "uploads").mkdir()
    (box.folder / "library" / "uploads" / "arriving").write_bytes(b"half")
    await box.archiver.archive()
    assert [one.name for one in await listed(bucket)] == ["history/manifest.json"]


async def test_what_is_wrong_with_a_part_is_found_and_named_and_sent_again(
    box: Box, bucket: Bucket, tmp_path: Path
) -> None:
    for number in range(4):
        box.file("alice", f"file-{number}", b"content %d" % number)
    await box.archiver.archive()
    parts = [(await attachment(bucket, f"file-{number}")).parts[0].name for number in range(3)]
    await bucket.delete([parts[0]])
    await bucket.put(parts[1], b"conten")
    await bucket.put(parts[2], b"c0ntent 2")
    found = {problem.object: problem.what for problem in await manifest.verify(bucket)}
    assert found.keys() == {*parts[:2]}
    assert "is missing" in found[parts[0]]
    assert "has 6 bytes, and was written with 9" in found[parts[1]]
    deep = {problem.object: problem.what for problem in await manifest.verify(bucket, deep=True)}
    assert deep.keys() == {*parts}
    assert "its SHA-256 differs" in deep[parts[2]]
    for number, part in enumerate(parts):
        assert f"library/files/{tenant_folder('alice')}/file-{number}." in deep[part]
    with pytest.raises(Damaged, match=parts[0]):
        await brought_back(bucket, tmp_path / "new")
    await box.archiver.archive(restart=True)
    assert await manifest.verify(bucket, deep=True) == []
    await brought_back(bucket, tmp_path / "new")
    assert files(tmp_path / "new") == files(box.folder)


async def test_a_damaged_list_of_files_is_named_even_without_a_deep_look(box: Box, bucket: Bucket) -> None:
    await box.archiver.archive()
    (segment,) = filelist.segments(await newest(bucket))
    data = bytearray(await bucket.get(segment.name))
    data[len(data) // 2] ^= 1
    await bucket.put(segment.name, bytes(data))
    for deep in (False, True):
        (problem,) = await manifest.verify(bucket, deep=deep)
        assert problem.object == segment.name
    before = await objects(bucket)
    await bucket.put("attachments/stray", b"which only the list could tell")
    Tenant(box.rocks, "alice").put_state("session", b"new")
    await box.archiver.archive()
    assert await objects(bucket) == before | {"attachments/stray"}, "nothing goes while nobody knows what it names"
    await box.archiver.archive(restart=True)
    assert await manifest.verify(bucket, deep=True) == []


async def test_repairing_sends_again_what_the_box_still_has(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(msgspec.structs.replace(config(data), archive_every_s=None)) as plane:
        folder = made(data / "library" / "files" / tenant_folder("alice"))
        for number in range(2):
            (folder / f"file-{number}").write_bytes(b"content %d" % number)
        await plane.cold.archive_now()
        there = Bucket(ColdConfig(), default_cold_folder(data))
        harmed, lost = [(await attachment(there, f"file-{number}")).parts[0].name for number in range(2)]
        await there.put(harmed, b"c0ntent 0")
        await there.delete([lost])
        (folder / "file-1").unlink()
        found = await verify(plane, deep=True)
        assert sorted(problem.what.split()[0] for problem in found.problems) == sorted([harmed, lost])
        mended = await verify(plane, deep=True, mend=True)
        assert (mended.problems, len(mended.repaired)) == ((), 2)
        assert bytes(await there.get(harmed)) == b"content 0"
        assert [one.name[-6:] for one in await listed(there)] == ["file-0"]


async def test_erasing_a_tenant_leaves_no_trace_of_its_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(msgspec.structs.replace(config(data), archive_every_s=None)) as plane:
        for tenant in ("alice", "bob"):
            await plane.state.put(tenant, "session", "one", b"said")
            folder = made(data / "library" / "files" / tenant_folder(tenant))
            (folder / "file-1").write_bytes(f"{tenant}'s secret".encode())
        await plane.cold.archive_now()
        status = plane.status().cold
        stored = [path for path in (tmp_path / "data-cold").rglob("*") if path.is_file()]
        assert status.objects == len(stored)
        assert status.bytes == sum(path.stat().st_size for path in stored if path.suffix != ".json")
        receipt = await erase(plane, "alice")
        assert (receipt.left, receipt.searched["files"]) == ((), 1)
        assert receipt.archive is not None
        assert [name for name in receipt.archive.removed if name.startswith("attachments/")] != []
    for trace in (b"alice's secret", tenant_folder("alice").encode()):
        assert files_with(trace, tmp_path) == []
    assert len(files_with(b"bob's secret", tmp_path)) == 2  # on the box, and in the archive


def files_with(piece: bytes, folder: Path) -> list[str]:
    """The files below a folder that hold these bytes as they are."""
    return [path.name for path in folder.rglob("*") if path.is_file() and piece in path.read_bytes()]


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "library/files/../../x", "rocks/x", "history", "library/files", "history//x", "history/./x", ""],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Damaged, match="belongs nowhere"):
        attachments.place_of(tmp_path, Attachment(name, 0, "", 0, ()))


async def test_a_manifest_of_the_first_format_is_read_and_gone_on_from(
    box: Box, bucket: Bucket, tmp_path: Path
) -> None:
    box.file("alice", "file-1", b"content")
    without = Archiver(box.rocks, bucket)
    await without.archive()
    stored = msgspec.to_builtins(await newest(bucket))
    del stored["files"]
    first = msgspec.json.decode(msgspec.json.encode(stored | {"format": 1}), type=manifest.Manifest)
    raw = msgspec.json.encode(stored | {"format": 1})
    checksum, _ = manifest.seal(first)
    assert first.files.count == 0
    await bucket.put(manifest.name_of(1), b'{"sha256":"%s","manifest":%s}' % (_sha256(raw).encode(), raw))
    position = positions.load(box.rocks)
    assert position is not None
    positions.save(box.rocks, msgspec.structs.replace(position, sha256=_sha256(raw)))
    assert (await manifest.read(bucket, 1)).manifest == first
    assert (await brought_back(bucket, tmp_path / "old")).files == 0
    report = await box.archiver.archive()
    assert (report.manifest, report.files) == (2, 1)
    assert (await newest(bucket)).format == 2
    await without.archive()
    await brought_back(bucket, tmp_path / "new")
    assert files(tmp_path / "new") == files(box.folder)
    assert checksum != _sha256(raw), "a manifest of now says how many files it has, if only none"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_layout_is_the_one_of_the_history() -> None:
    assert attachments.HISTORY.mutable == logmanifest.MANIFEST
    assert Part("ab", 1).name == "attachments/ab"
