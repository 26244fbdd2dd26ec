"""Buckets: the same promises from a local folder and from the real S3 server, and errors that say what to do."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import msgspec
import pytest

from dataplane.cold.bucket import Bucket
from dataplane.cold_config import ColdConfig
from dataplane.errors import BucketUnreachable, InvalidInput, NotFound, VersionConflict
from tests.dataplane.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed


def s3_config(seaweed: Seaweed, prefix: str, **others: object) -> ColdConfig:
    fields = {
        "bucket": BUCKET,
        "endpoint": seaweed.endpoint,
        "prefix": prefix,
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "allow_http": True,
        "request_timeout_s": 20.0,
        "retries": 1,
    }
    return msgspec.convert({**fields, **others}, ColdConfig)


@pytest.fixture(params=["folder", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    if request.param == "folder":
        return Bucket(ColdConfig(), tmp_path / "cold")
    return Bucket(s3_config(request.getfixturevalue("seaweed"), tmp_path.name.replace("[", "-").rstrip("]")), tmp_path)


async def names(bucket: Bucket, folder: str) -> dict[str, int]:
    return {name: size async for name, size in bucket.list(folder)}


async def test_of_many_who_put_a_new_name_one_wins(bucket: Bucket) -> None:
    contents = [b"%d" % number * 1000 for number in range(8)]
    won = await asyncio.gather(*(bucket.put_new("a/b.bin", content) for content in contents))
    assert won.count(True) == 1
    assert bytes(await bucket.get("a/b.bin")) == contents[won.index(True)]
    assert await names(bucket, "a") == {"a/b.bin": 1000}


async def test_what_was_put_is_read_whole(bucket: Bucket) -> None:
    await bucket.put("x", b"first")
    await bucket.put("x", memoryview(b"0123456789"))
    assert bytes(await bucket.get("x")) == b"0123456789"


async def test_a_replacement_needs_the_version_that_was_seen(bucket: Bucket) -> None:
    await bucket.put("x", b"one")
    seen = await bucket.etag("x")
    await bucket.replace("x", b"two!", seen)
    with pytest.raises(VersionConflict, match="read it again"):
        await bucket.replace("x", b"three", seen)
    assert bytes(await bucket.get("x")) == b"two!"
    latest = await bucket.etag("x")
    outcomes = await asyncio.gather(
        *(bucket.replace("x", b"n" * (5 + number), latest) for number in range(5)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType"] + ["VersionConflict"] * 4


async def test_what_is_not_there_is_not_found_and_can_be_deleted(bucket: Bucket) -> None:
    for reading in (bucket.get("no"), bucket.etag("no")):
        with pytest.raises(NotFound, match="no is not in"):
            await reading
    await bucket.put("yes", b"1")
    await bucket.delete(["no", "yes", "nor/this"])
    assert await names(bucket, "") == {}


async def test_a_listing_has_its_folder_only(bucket: Bucket) -> None:
    for name in ("a/1", "a/2", "ab/3", "c"):
        await bucket.put(name, name.encode())
    assert await names(bucket, "a") == {"a/1": 3, "a/2": 3}
    assert await names(bucket, "") == {"a/1": 3, "a/2": 3, "ab/3": 4, "c": 1}
    assert await names(bucket, "none") == {}


async def test_a_check_leaves_nothing_behind(bucket: Bucket) -> None:
    await bucket.check()
    assert await names(bucket, "") == {}


async def test_a_folder_is_closed_to_others(tmp_path: Path) -> None:
    await Bucket(ColdConfig(), tmp_path / "cold").put("x", b"1")
    assert (tmp_path / "cold").stat().st_mode & 0o777 == 0o700


async def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BucketUnreachable, match="the folder"):
        Bucket(ColdConfig(), tmp_path / "file" / "cold")


async def test_halves_of_objects_are_swept_and_never_listed(tmp_path: Path) -> None:
    bucket = Bucket(ColdConfig(), tmp_path)
    await bucket.put("a/x", b"1")
    (tmp_path / "acu/a/y#12").write_bytes(b"half")
    assert await names(bucket, "") == {"a/x": 1}
    assert await bucket.sweep() == 1
    assert [path.name for path in (tmp_path / "acu/a").iterdir()] == ["x"]


async def test_refused_credentials_say_so_without_telling_them(seaweed: Seaweed, tmp_path: Path) -> None:
    for wrong in ({"secret_access_key": "wrongsecret"}, {"access_key_id": "nobody"}):
        with pytest.raises(BucketUnreachable, match="refuses access .403 Forbidden.*check the credentials") as caught:
            await Bucket(s3_config(seaweed, "p", **wrong), tmp_path).check()
        assert BUCKET in str(caught.value)
        assert seaweed.endpoint in str(caught.value)
        for secret in ("wrongsecret", SECRET_KEY, "nobody"):
            assert secret not in str(caught.value)
            assert secret not in str(caught.value.__cause__)


async def test_a_server_that_is_not_there_is_unreachable_soon(tmp_path: Path) -> None:
    config = ColdConfig(
        bucket="b", endpoint="http://127.0.0.1:9", access_key_id="a", secret_access_key="s", allow_http=True, retries=1
    )
    with pytest.raises(BucketUnreachable, match="no connection") as caught:
        await Bucket(config, tmp_path).check()
    assert caught.value.retry_after_s > 0


async def test_what_the_service_encrypts_comes_back(seaweed: Seaweed, tmp_path: Path) -> None:
    contents = {"none": secrets.token_bytes(100_000), "AES256": secrets.token_bytes(100_000)}
    for encryption, content in contents.items():
        bucket = Bucket(s3_config(seaweed, encryption, server_side_encryption=encryption), tmp_path)
        assert await bucket.put_new("x", content)
        assert bytes(await bucket.get("x")) == content
    stored = b"".join(path.read_bytes() for path in seaweed.data.rglob("*.dat"))
    assert [content[1_000:2_000] in stored for content in contents.values()] == [True, False]


async def test_encryption_that_the_service_does_not_know_is_explained(seaweed: Seaweed, tmp_path: Path) -> None:
    for key in (None, "alias/key"):
        config = s3_config(seaweed, "encrypted", server_side_encryption="aws:kms", kms_key_id=key)
        with pytest.raises(BucketUnreachable, match="may not know server_side_encryption aws:kms"):
            await Bucket(config, tmp_path).put("y", b"1")


async def test_credentials_come_from_a_closed_file(seaweed: Seaweed, tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    config = s3_config(seaweed, "file", access_key_id=None, secret_access_key=None, credentials_file=str(path))
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        Bucket(config, tmp_path)
    path.chmod(0o600)
    await Bucket(config, tmp_path).check()
    for broken in ("", "[default]\n", f"no section {SECRET_KEY}\n", "\xff"):
        path.write_bytes(broken.encode("latin-1"))
        with pytest.raises(InvalidInput, match="gives no credentials") as caught:
            Bucket(config, tmp_path)
        assert SECRET_KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"access_key_id": "a"}, "come together"),
        ({"access_key_id": "a", "secret_access_key": "b", "credentials_file": "c"}, "not both"),
        ({"endpoint": "http://host"}, "set allow_http"),
        ({"endpoint": "ftp://host"}, "matching regex"),
        ({"endpoint": "https://user:password@host"}, "matching regex"),
        ({"kms_key_id": "k"}, "needs server_side_encryption"),
        ({"prefix": "a/../b"}, "no part of prefix"),
        ({"prefix": "/a"}, "matching regex"),
        ({"retries": 11}, "<= 10"),
        ({"colour": "red"}, "unknown field"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(fields, ColdConfig)


def test_a_configuration_does_not_tell_its_secret() -> None:
    assert "hush" not in repr(ColdConfig(access_key_id="a", secret_access_key="hush"))
