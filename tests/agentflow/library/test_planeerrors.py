"""No error of the data plane leaves the library as it is."""

from __future__ import annotations

import errno

import pytest

from agentflow.errors import AgentFlowError, InvalidRequest, Refused
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataDamaged, DataUnavailable, DiskFull, NotStored
from dataplane import errors as plane


def classes(root: type[plane.DataPlaneError] = plane.DataPlaneError) -> list[type[plane.DataPlaneError]]:
    return [root, *(below for child in root.__subclasses__() for below in classes(child))]


def made(kind: type[plane.DataPlaneError]) -> plane.DataPlaneError:
    return kind("words", version=1) if issubclass(kind, plane.VersionConflict) else kind("words")


@pytest.mark.parametrize("kind", classes())
def test_each_error_of_the_data_plane_becomes_one_of_ours_with_its_words(kind: type[plane.DataPlaneError]) -> None:
    with pytest.raises(AgentFlowError, match="words") as raised, translated():
        raise made(kind)
    expected = (
        (plane.InvalidInput, InvalidRequest),
        (plane.NotFound, NotStored),
        (plane.StorageFull, DiskFull),
        (plane.Unavailable, DataUnavailable),
        (plane.Conflict, DataUnavailable),
        (plane.DataPlaneError, DataDamaged),
    )
    assert type(raised.value) is next(ours for theirs, ours in expected if issubclass(kind, theirs))
    assert raised.value.__cause__ is not None


def test_the_field_and_the_time_to_come_again_stay() -> None:
    with pytest.raises(InvalidRequest) as refused, translated():
        raise plane.InvalidFilter("words", param="filters.type")
    assert refused.value.param == "filters.type"
    with pytest.raises(Refused) as busy, translated():
        raise plane.Unavailable("words", retry_after_s=7.0)
    assert busy.value.retry_after_s == 7.0


def test_a_full_disk_under_files_is_told_as_one_and_other_trouble_as_damage() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(DiskFull), translated():
            raise OSError(number, "no room")
    with pytest.raises(DataDamaged, match="cannot be used"), translated():
        raise PermissionError(errno.EACCES, "no")


def test_our_own_refusals_pass() -> None:
    with pytest.raises(NotStored), translated():
        raise NotStored("ours")
