"""Manifests: sealed, numbered, put once; and what verifying them finds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dataplane.cold import manifest
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import Collection, EntrySegment, Manifest, RowSegment
from dataplane.cold.segments import Sealed, SegmentWriter
from dataplane.errors import Conflict, Damaged, DataPlaneError, NotFound, UnsupportedFormat
from tests.dataplane.boxes import local_bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return local_bucket(tmp_path / "cold")


async def segment(bucket: Bucket, value: bytes) -> Sealed:
    writer = SegmentWriter("entries")
    writer.add_entries([(b"key", value)])
    sealed, content = writer.finish()
    await bucket.put(sealed.name, content)
    return sealed


def made(number: int, *segments: Sealed, owner: str = "me") -> Manifest:
    entries = tuple(EntrySegment(sealed=one, family="state", tenant="alice", content="") for one in segments)
    return Manifest(number=number, owner=owner, created_ms=number, entries=entries)


async def put(bucket: Bucket, new: Manifest) -> str:
    checksum, content = manifest.seal(new)
    await manifest.put(bucket, new.number, content)
    return checksum


async def test_a_manifest_is_read_as_it_was_written(bucket: Bucket) -> None:
    sealed = await segment(bucket, b"1")
    rows = RowSegment(sealed=sealed, first=1, last=9, applied=12, dead=3)
    collection = Collection(tenant="上海", name="n", number=4, dimensions=8, seq=12, rows=(rows,))
    new = msgspec.structs.replace(made(7, sealed), collections=(collection,))
    checksum = await put(bucket, new)
    assert await manifest.read(bucket, 7) == (new, checksum)
    assert [one.name for one in new.segments()] == [sealed.name] * 2


async def test_a_number_is_given_once_but_the_same_content_may_be_sent_again(bucket: Bucket) -> None:
    new = made(1)
    await put(bucket, new)
    await put(bucket, new)
    with pytest.raises(Conflict, match="written by another box"):
        await put(bucket, made(1, owner="somebody else"))
    assert (await manifest.read(bucket, 1)).manifest.owner == "me"


async def test_a_flipped_bit_anywhere_is_found_and_named(bucket: Bucket) -> None:
    await put(bucket, made(1, await segment(bucket, b"1")))
    path = Path(bucket.where.removeprefix("the folder ")) / "acu" / manifest.name_of(1)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (0x01, 0x20):
            flipped = bytearray(whole)
            flipped[at] ^= bit
            path.write_bytes(flipped)
            with pytest.raises(Damaged, match=manifest.name_of(1)):
                await manifest.read(bucket, 1)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"sha256":"","manifest":{}}'])
async def test_what_is_no_manifest_is_named(bucket: Bucket, content: bytes) -> None:
    await bucket.put(manifest.name_of(3), content)
    with pytest.raises(Damaged, match=manifest.name_of(3)):
        await manifest.read(bucket, 3)


async def test_a_manifest_of_a_newer_release_is_refused_and_not_passed_over(bucket: Bucket) -> None:
    await put(bucket, made(1))
    await put(bucket, msgspec.structs.replace(made(2), format=manifest.FORMAT + 1))
    with pytest.raises(UnsupportedFormat, match=f"format {manifest.FORMAT + 1}"):
        await manifest.shelf(bucket)


async def test_a_manifest_under_another_number_is_refused(bucket: Bucket) -> None:
    await put(bucket, made(1))
    await bucket.put(manifest.name_of(2), await bucket.get(manifest.name_of(1)))
    with pytest.raises(Damaged, match="manifest 1 under a wrong name"):
        await manifest.read(bucket, 2)


async def test_the_newest_whole_manifest_is_found_behind_broken_ones(bucket: Bucket) -> None:
    for number in (1, 2, 10):
        await put(bucket, made(number))
    await bucket.put(manifest.name_of(11), b"torn")
    await bucket.put("manifests/notes.txt", b"somebody's")
    found = await manifest.shelf(bucket, most=2)
    assert [one.manifest.number for one in found.whole] == [10, 2]
    assert [problem.object for problem in found.broken] == [manifest.name_of(11)]
    assert found.last == 11


async def test_an_empty_bucket_has_no_manifest(bucket: Bucket) -> None:
    assert await manifest.shelf(bucket) == ([], [], 0)
    (problem,) = await manifest.verify(bucket)
    assert "run `acu data archive`" in problem.what
    with pytest.raises(NotFound):
        await manifest.read(bucket, 1)
    with pytest.raises(DataPlaneError, match="nothing is removed"):
        await manifest.remove_unnamed(bucket, keep=1)


async def test_verifying_names_what_is_missing_cut_or_changed(bucket: Bucket) -> None:
    sealed = [await segment(bucket, b"value %d" % number) for number in range(4)]
    await put(bucket, made(1, *sealed))
    assert await manifest.verify(bucket, deep=True) == []
    await bucket.delete([sealed[0].name])
    await bucket.put(sealed[1].name, bytes(await bucket.get(sealed[1].name))[:-1])
    flipped = bytearray(await bucket.get(sealed[2].name))
    flipped[5] ^= 4
    await bucket.put(sealed[2].name, bytes(flipped))
    found = {problem.object: problem.what for problem in await manifest.verify(bucket)}
    assert found.keys() == {sealed[0].name, sealed[1].name}
    assert "is missing" in found[sealed[0].name]
    assert f"was written with {sealed[1].size}" in found[sealed[1].name]
    deep = {problem.object: problem.what for problem in await manifest.verify(bucket, deep=True)}
    assert deep.keys() == {one.name for one in sealed[:3]}
    assert "its SHA-256 differs" in deep[sealed[2].name]
    assert all("acu data archive --restart" in what for what in deep.values())


async def test_what_no_kept_manifest_names_is_removed(bucket: Bucket) -> None:
    sealed = [await segment(bucket, b"value %d" % number) for number in range(4)]
    await put(bucket, made(1, sealed[0]))
    await put(bucket, made(2, sealed[1], sealed[2]))
    await put(bucket, made(3, sealed[2]))
    removed = await manifest.remove_unnamed(bucket, keep=2)
    assert sorted(removed) == sorted([manifest.name_of(1), sealed[0].name, sealed[3].name])
    assert await manifest.remove_unnamed(bucket, keep=1) == [manifest.name_of(2), sealed[1].name]
    assert {name async for name, _ in bucket.list("")} == {manifest.name_of(3), sealed[2].name}


def test_numbers_in_names_sort_as_numbers() -> None:
    names = [manifest.name_of(number) for number in (1, 9, 10, 99, 10**19)]
    assert names == sorted(names)
