"""The reserve is there when it is needed, and never takes the last space of a disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.errors import StorageFull
from dataplane.truth.reserve import Lender, Reserve
from tests.smalldisk import fill_up, free, room, small_disk

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    with small_disk(tmp_path / "disk", 16) as made:
        yield made


def test_a_reserve_is_made_where_there_is_plenty_and_given_up_where_there_is_nothing(disk: Path) -> None:
    reserve = Reserve(disk / "reserve", 2 * MIB)
    reserve.top_up()
    assert room(disk) == 14 * MIB
    assert not reserve.give_up(), "there is room"
    fill_up(disk)
    assert reserve.give_up()
    assert room(disk) == 2 * MIB
    fill_up(disk, leave=MIB)  # what the opening took
    reserve.take_back()
    assert room(disk) == 0
    assert reserve.give_up()
    assert room(disk) == MIB
    assert not reserve.give_up()


def test_a_disk_with_little_room_keeps_it(disk: Path) -> None:
    reserve = Reserve(disk / "reserve", 2 * MIB)
    fill_up(disk, leave=7 * MIB)
    reserve.top_up()
    assert room(disk) == 7 * MIB
    free(disk)
    reserve.top_up()
    reserve.top_up()
    assert room(disk) == 14 * MIB


def test_a_reserve_that_cannot_be_had_is_no_error(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "missing" / "reserve", MIB)
    reserve.top_up()
    reserve.take_back()
    assert not reserve.give_up()
    assert list(tmp_path.iterdir()) == []


async def test_a_delete_borrows_the_reserve_and_what_is_left_is_taken_back(disk: Path) -> None:
    reserve = Reserve(disk / "reserve", 2 * MIB)
    reserve.top_up()
    fill_up(disk)

    async def delete() -> str:
        if room(disk) < MIB:
            raise StorageFull("the disk is full.")
        fill_up(disk, leave=MIB)  # what the delete takes
        return "deleted"

    lender = Lender(reserve)
    assert await lender.delete(delete) == "deleted"
    assert room(disk) == 0
    assert (disk / "reserve").stat().st_size == MIB
    free(disk)
    await lender.top_up()
    assert (disk / "reserve").stat().st_size == 2 * MIB


async def test_a_delete_that_no_reserve_helps_fails_at_once(tmp_path: Path) -> None:
    async def delete() -> None:
        raise StorageFull("the disk is full.")

    with pytest.raises(StorageFull):
        await Lender(Reserve(tmp_path / "reserve", MIB)).delete(delete)
