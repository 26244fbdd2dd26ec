"""Work on a whole data plane: what is refused before anything is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from acu.datawork import perform
from acu.http.wire.data import BackupBody, EraseBody
from agentflow.library.records import HOUSE, Records
from agentflow.library.shelf import Shelves
from dataplane.care.inspection import silent
from dataplane.errors import InvalidInput, NotFound
from dataplane.store import DataPlane, opened
from tests.dataplane.planes import NAME, TENANT, config, filled, vectors


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[DataPlane]:
    async with opened(msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)) as plane:
        await filled(plane, vectors(30))
        yield plane


@pytest.mark.parametrize("place", ["data/backup", "data", "data-cold/backup", "data-cold", "data-cold/acu/x"])
async def test_no_backup_is_made_among_the_data_or_in_their_archive(
    plane: DataPlane, tmp_path: Path, place: str
) -> None:
    with pytest.raises(InvalidInput, match="name one outside of it"):
        await perform(plane, BackupBody(folder=str(tmp_path / place)), silent)
    assert (await perform(plane, BackupBody(folder=str(tmp_path / "data-cold-backup")), silent))["files"] > 0


@pytest.mark.parametrize(
    ("tenant", "collection", "ids", "told"),
    [
        ("nobody", None, None, f"there is no tenant 'nobody'.* There is: {TENANT}"),
        ("nobody", NAME, None, "there is no tenant 'nobody'"),
        (TENANT, "nowhere", None, f"there is no collection 'nowhere' of the tenant '{TENANT}'.* There is: {NAME}"),
        (TENANT, f"{TENANT}/{NAME}", ("1",), f"There is: {NAME}"),
    ],
)
async def test_what_is_not_there_cannot_be_erased(
    plane: DataPlane, tenant: str, collection: str | None, ids: tuple[str, ...] | None, told: str
) -> None:
    with pytest.raises(NotFound, match=told):
        await perform(plane, EraseBody(tenant=tenant, collection=collection, ids=ids), silent)
    assert (await perform(plane, EraseBody(tenant=TENANT), silent))["rows"] == 30


async def test_an_erased_tenant_is_not_in_the_librarys_list_and_comes_back_into_it_with_its_next_file(
    plane: DataPlane,
) -> None:
    shelves = Shelves(Records(plane.state))
    await shelves.made(TENANT)
    assert await plane.state.get(HOUSE, "tenant", TENANT) is not None
    assert (await perform(plane, EraseBody(tenant=TENANT), silent))["left"] == ()
    assert await plane.state.get(HOUSE, "tenant", TENANT) is None
    await shelves.made(TENANT)
    assert await plane.state.get(HOUSE, "tenant", TENANT) is not None
