"""The data plane's errors in the orchestrator's words: `translated` is the one place where they are changed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agentflow.errors import InvalidRequest
from agentflow.library.refusals import DataDamaged, DataUnavailable, DiskFull, NotStored
from dataplane import errors as plane

_DISK_RETRY_S: Final = 30.0
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def damage_of(what: str) -> Iterator[None]:
    """Say of damage that is found within what is damaged: `DataDamaged.of`."""
    try:
        yield
    except DataDamaged as error:
        raise DataDamaged(str(error), of=error.of or what) from error


@contextmanager
def translated() -> Iterator[None]:
    """Turn the data plane's errors, and those of the disk that files lie on, into the orchestrator's."""
    try:
        yield
    except plane.InvalidInput as error:
        raise InvalidRequest(str(error), param=error.param) from error
    except plane.NotFound as error:
        raise NotStored(str(error)) from error
    except plane.StorageFull as error:
        raise DiskFull(str(error), retry_after_s=max(error.retry_after_s, _DISK_RETRY_S)) from error
    except plane.Unavailable as error:
        raise DataUnavailable(str(error), retry_after_s=error.retry_after_s) from error
    except plane.Conflict as error:
        raise DataUnavailable(f"another request changed it meanwhile: {error}", retry_after_s=1.0) from error
    except plane.DataPlaneError as error:
        raise DataDamaged(str(error)) from error
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"the disk is full: {error.strerror}.", retry_after_s=_DISK_RETRY_S) from error
        raise DataDamaged(f"the library's folder cannot be used: {error}") from error
