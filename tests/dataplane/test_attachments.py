"""Files of the data plane's folder: what counts as one, what manifests say of them, and how they are erased."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dataplane import archive_position as positions
from dataplane import attachments, logmanifest, manifest
from dataplane.archive import Archiver
from dataplane.archive_erasure import Subject, look_again
from dataplane.attachments import Attachment, Part, tenant_folder
from dataplane.bucket import Bucket
from dataplane.errors import Conflict, Damaged
from tests.dataplane.attached import Box, attachment, brought_back, files, listed, newest, objects
from tests.dataplane.boxes import Tenant, local_bucket


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
