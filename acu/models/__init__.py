"""The models: which ones ACU knows, and the cache on the NVMe disk that it loads them from."""

from acu.models.cache import (
    LocalModel,
    Manifest,
    folder_name,
    in_use,
    installed,
    is_path,
    locate,
    names,
    remove,
    verify,
)
from acu.models.catalogue import HubSource, ModelEntry, Role, WheelSource, by_name, catalogue, find
from acu.models.preload import Preloaded, preload
from acu.models.progress import Progress, silent
from acu.models.pull import pull
from acu.models.recommended import Recommended, recommended_sampling

__all__ = [
    "HubSource",
    "LocalModel",
    "Manifest",
    "ModelEntry",
    "Preloaded",
    "Progress",
    "Recommended",
    "Role",
    "WheelSource",
    "by_name",
    "catalogue",
    "find",
    "folder_name",
    "in_use",
    "installed",
    "is_path",
    "locate",
    "names",
    "preload",
    "pull",
    "recommended_sampling",
    "remove",
    "silent",
    "verify",
]
