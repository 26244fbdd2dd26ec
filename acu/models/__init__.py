"""The models: which ones ACU knows, and the cache on the NVMe disk that it loads them from."""

from acu.models.cache import LocalModel, Manifest, folder_name, folder_of, installed, locate, names, remove, verify
from acu.models.catalogue import HubSource, ModelEntry, Role, WheelSource, catalogue, find
from acu.models.preload import Preloaded, preload
from acu.models.progress import Progress, silent
from acu.models.pull import pull
from acu.models.recommended import recommended_sampling

__all__ = [
    "HubSource",
    "LocalModel",
    "Manifest",
    "ModelEntry",
    "Preloaded",
    "Progress",
    "Role",
    "WheelSource",
    "catalogue",
    "find",
    "folder_name",
    "folder_of",
    "installed",
    "locate",
    "names",
    "preload",
    "pull",
    "recommended_sampling",
    "remove",
    "silent",
    "verify",
]
