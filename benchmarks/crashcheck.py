"""Whether a data plane whose process was killed has all that it should, and nothing else. The parent's side.

It is opened and asked at once, while graph and shards are still being taken up, and again when everything has settled:

    cells       what is stored, for the model to compare (crashmodel.py)
    searches    exact ones give just what numpy finds in the rows that are there, others miss next to none; no row comes twice,
                and none that is not there; each version's own word finds that row, words of versions that are gone find nothing
    verify      clean, in every collection
    archive     its objects are whole, and what is restored from it is byte for byte what the box has
"""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import crashrows
from benchmarks.crashmodel import Model
from benchmarks.crashrows import ROWS, SPECS, TENANT
from dataplane.care.verify import verify
from dataplane.cold import manifest
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_restore import restore
from dataplane.cold.bucket import Bucket
from dataplane.cold_config import ColdConfig
from dataplane.config import DataPlaneConfig
from dataplane.rows import SearchQuery
from dataplane.store import DataPlane, opened
from dataplane.truth.rocks import FAMILIES, Rocks

K = 10
QUERIES = 12
WORDS = 25
LEAST_RECALL = 0.97
SETTLE_S = 60.0
ROCKS_BYTES = 16 << 20


class Check:
    """One opening of the data in `folder`, whose archive is in `cold`."""

    def __init__(self, folder: Path, cold: Path, model: Model, seed: int) -> None:
        self.folder = folder
        self.cold = cold
        self.model = model
        self.random = np.random.default_rng(seed)
        self.problems: list[str] = []
        self.counts: dict[str, int] = {}

    async def run(self, *, archive: bool) -> list[str]:
        """What is wrong. With `archive`, everything is archived and restored elsewhere."""
        config = DataPlaneConfig(path=str(self.folder), hot_layer_mem_mb=64, archive_every_s=None)
        async with opened(config) as plane:
            begun_ms = int(time.time() * 1000)
            found, vectors = await self.cells(plane)
            self.problems += self.model.settle(found, (begun_ms, int(time.time() * 1000)))
            self.counts = {"rows": sum(len(ids) for ids, _ in vectors.values()), "cells": len(found)}
            for name, (ids, stored) in vectors.items():
                await self.search(plane, name, ids, stored)
            for name, (ids, stored) in vectors.items():
                async with asyncio.timeout(SETTLE_S):
                    await plane.settle(TENANT, name)
                await self.search(plane, name, ids, stored)
                await self.search_words(plane, name, found)
            for collection in plane.open_collections():
                self.problems += [
                    f"verify, {problem.collection}, {problem.where}: {problem.what}" for problem in verify(collection)
                ]
            for status in plane.status().collections:
                self.problems += [f"{status.name}: {problem}" for problem in status.problems]
            if archive:
                await self.archive(plane)
        return self.problems

    async def cells(self, plane: DataPlane) -> tuple[dict[str, Any], dict[str, tuple[list[str], np.ndarray]]]:
        """What is stored; and of each collection the ids that are there, and their vectors."""
        found: dict[str, Any] = {}
        vectors: dict[str, tuple[list[str], np.ndarray]] = {}
        for name in plane.collections(TENANT):
            found[name] = "there"
            ids = [f"r{row}" for row in range(ROWS[name])]
            stored = await plane.get(TENANT, name, ids, vectors=True)
            there: list[np.ndarray] = []
            for number, row in enumerate(stored):
                if row is None:
                    continue
                version = int(row.attributes["version"])
                wanted = crashrows.made(name, number, version)
                assert row.vector is not None
                if (row.text, row.attributes) != (wanted.text, wanted.attributes) or not np.allclose(
                    row.vector, wanted.vector, atol=1e-6
                ):
                    self.problems.append(f"{name}/{number} is not what version {version} was")
                found[f"{name}/{number}"] = [version, row.expires_ms]
                there.append(row.vector)
            shape = (len(there), SPECS[name].dimensions)
            vectors[name] = (
                [row.id for row in stored if row is not None],
                np.array(there, np.float32).reshape(shape),
            )
        await self.state_cells(plane, found)
        return found, vectors

    async def state_cells(self, plane: DataPlane, found: dict[str, Any]) -> None:
        """Records by their version, logs by their last number; what is in them is checked here."""
        for name, record in await plane.state.scan(TENANT, "run", limit=1000):
            version = int(record.value.split()[1])
            if record.value != crashrows.payload(name, version):
                self.problems.append(f"record {name} is not what version {version} was")
            found[f"record/{name}"] = version
        for stream in ("log0", "log1", "log2"):
            last = after = await plane.state.last_seq(TENANT, stream)
            if last:
                found[f"log/{stream}"] = last
            numbers: list[int] = []
            after = 0
            while page := await plane.state.read(TENANT, stream, after=after):
                after = page[-1][0]
                numbers += [number for number, _ in page]
                self.problems += [
                    f"event {number} of {stream} is {event.payload!r}"
                    for number, event in page
                    if event.payload != f"{stream} {number}".encode()
                ]
            if numbers and numbers != list(range(numbers[0], last + 1)):
                self.problems.append(f"the events of {stream} have gaps: {numbers}")

    async def search(self, plane: DataPlane, name: str, ids: list[str], stored: np.ndarray) -> None:
        """Searches against the rows that are there. Some may expire meanwhile, and are then let pass."""
        metric = SPECS[name].metric
        hits_of_all = wanted_of_all = 0
        for row in self.random.integers(0, ROWS[name], QUERIES).tolist():
            query = crashrows.vector(name, row, 0)
            scores = -((stored - query) ** 2).sum(axis=1) if metric == "l2" else stored @ query
            for exact in (True, False):
                answer = await plane.search(TENANT, name, SearchQuery(vector=query, k=K, exact=exact))
                got = [hit.id for hit in answer.hits]
                gone = await self.expired(plane, name, ids)
                left = np.array([id_ not in gone for id_ in ids], np.bool_)
                best = np.argsort(-np.where(left, scores, -np.inf), kind="stable")[: min(K, int(left.sum()))]
                true = [ids[at] for at in best]
                if len(set(got)) < len(got) or not set(got) <= set(ids):
                    self.problems.append(f"{name}: an answer has rows twice, or that are not there: {got}")
                if exact and not gone and got != true:
                    self.problems.append(f"{name}: an exact search gave {got}, not {true}")
                if not exact:
                    hits_of_all += len(set(got) & set(true))
                    wanted_of_all += len(true)
        if hits_of_all < LEAST_RECALL * wanted_of_all:
            self.problems.append(f"{name}: recall {hits_of_all / wanted_of_all:.3f}")

    async def expired(self, plane: DataPlane, name: str, ids: list[str]) -> set[str]:
        """Those of `ids` whose time has come since they were read, if one has."""
        stored = await plane.get(TENANT, name, ids)
        return {id_ for id_, row in zip(ids, stored, strict=True) if row is None}

    async def search_words(self, plane: DataPlane, name: str, found: dict[str, Any]) -> None:
        """Each version's own word."""
        if not SPECS[name].text:
            return
        rows = [int(cell.rpartition("/")[2]) for cell in found if cell.startswith(f"{name}/")]
        for row in self.random.choice(rows, min(WORDS, len(rows)), replace=False).tolist():
            version, expires_ms = found[f"{name}/{row}"]
            for word, there in ((crashrows.word(row, version), True), (crashrows.word(row, version - 1), False)):
                hits = (await plane.search(TENANT, name, SearchQuery(text=word))).hits
                if [hit.id for hit in hits] != ([f"r{row}"] if there else []) and expires_ms is None:
                    self.problems.append(f"{name}: the word {word} finds {[hit.id for hit in hits]}")

    async def archive(self, plane: DataPlane) -> None:
        """Archive, look at every object, restore elsewhere, and compare."""
        bucket = Bucket(ColdConfig(folder=str(self.cold)), self.cold)
        await Archiver(plane.rocks, bucket).archive()
        self.problems += [f"archive: {problem}" for problem in await manifest.verify(bucket, deep=True)]
        other = self.folder.with_name("restored")
        try:
            rocks = Rocks.open(other, memory_bytes=ROCKS_BYTES)
            try:
                await restore(bucket, rocks)
                self.compare(plane.rocks, rocks)
            finally:
                rocks.close()
        finally:
            shutil.rmtree(other, ignore_errors=True)

    def compare(self, ours: Rocks, restored: Rocks) -> None:
        """Every family but `dead`, which tells accelerators what ended, and a restored box has none."""
        for family in FAMILIES:
            if family != "dead":
                box, back = (dict(rocks.scan(family, b"", start=b"\x00\x01")) for rocks in (ours, restored))
                if box != back:
                    wrong = {key for key in box.keys() | back.keys() if box.get(key) != back.get(key)}
                    self.problems.append(f"archive: {len(wrong)} keys of {family} came back wrong")
