"""acu.hardware.numamaps: lines as the kernel writes them, of a machine with two nodes, and of this very process."""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

import pytest

from acu.hardware.numamaps import Pages, parse

# An engine beside node 1: its heap mostly there, weights and libraries in the page cache of node 0.
ENGINE = """\
5581a2400000 prefer:1 file=/usr/bin/python3.11 mapped=3 mapmax=9 N0=3 kernelpagesize_kB=4
5581a2a9e000 prefer:1 file=/usr/bin/python3.11 anon=76 dirty=76 N1=76 kernelpagesize_kB=4
5581a3e5c000 prefer:1 heap anon=25000 dirty=25000 active=24000 N0=100 N1=24900 kernelpagesize_kB=4
7f1c00000000 prefer:1 anon=524288 dirty=524288 N1=524288 kernelpagesize_kB=4
7f1cc0000000 prefer:1 file=/anon_hugepage\\040(deleted) huge anon=2 dirty=2 N1=2 kernelpagesize_kB=2048
7f1d00000000 prefer:1 file=/models/a/model.safetensors mapped=70000 active=0 N0=65000 N1=5000 kernelpagesize_kB=4
7f1e00000000 prefer:1 file=/dev/shm/psm_1a2b mapped=1000 mapmax=2 N0=1000 kernelpagesize_kB=4
7f1e10000000 prefer:1 file=/memfd:ring\\040(deleted) dirty=500 N1=500 kernelpagesize_kB=4
7f1e20000000 prefer:1 file=/usr/lib/libtorch_cpu.so anon=10 dirty=10 mapped=900 mapmax=2 N0=905 N1=5 kernelpagesize_kB=4
7f1e30000000 prefer:1
7ffc8d5e1000 prefer:1 stack anon=34 dirty=34 N1=34 kernelpagesize_kB=4
7ffc8d5fd000 default
"""


def test_own_memory_and_files_are_summed_apart() -> None:
    pages = parse(ENGINE)
    assert pages == Pages(
        own={0: (100 + 1000) * 4096, 1: (76 + 24900 + 524288 + 500 + 34) * 4096 + 2 * 2_097_152},
        files={0: (3 + 65000 + 905) * 4096, 1: 5005 * 4096},
    )
    assert pages.share(1) == pytest.approx(0.998007, abs=1e-6)
    assert pages.share(0) == pytest.approx(0.001993, abs=1e-6)
    assert pages.file_share(1) == pytest.approx(5005 / 70913)
    assert pages.share(2) == 0.0


def test_nothing_is_all_on_the_node() -> None:
    assert parse("") == Pages()
    assert Pages().share(3) == 1.0


def test_a_text_that_is_cut_anywhere_or_garbled_never_fails_and_never_invents() -> None:
    whole = parse(ENGINE)
    for cut in range(len(ENGINE)):
        found = parse(ENGINE[:cut])
        assert sum(found.own.values()) <= sum(whole.own.values()) + 4 * 2_097_152
    rng = random.Random(7)
    for _ in range(200):
        parse("".join(rng.choice("Nanon0123=: \n/file") for _ in range(200)))


def test_a_page_that_this_process_touches_is_its_own() -> None:
    maps = Path("/proc/self/numa_maps")
    if not maps.exists():
        pytest.skip("this kernel has no NUMA")
    size = 64 << 20
    before = sum(parse(maps.read_text()).own.values())
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, 4096):
            memory[page] = 1
        after = sum(parse(maps.read_text()).own.values())
    assert size <= after - before < size + (8 << 20)


def test_a_files_pages_are_not_its_own_until_they_are_written(tmp_path: Path) -> None:
    maps = Path("/proc/self/numa_maps")
    if not maps.exists():
        pytest.skip("this kernel has no NUMA")
    size = 16 << 20
    (tmp_path / "weights").write_bytes(os.urandom(size))
    before = parse(maps.read_text())
    with (tmp_path / "weights").open("r+b") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as memory:
        assert sum(memory[page] for page in range(0, size, 4096)) > 0
        after = parse(maps.read_text())
        if sum(after.files.values()) == sum(before.files.values()):
            pytest.skip("the folder for temporary files is memory")
        assert sum(after.files.values()) - sum(before.files.values()) >= size
        for page in range(0, size, 4096):
            memory[page] = 1
        written = parse(maps.read_text())
    assert sum(written.own.values()) - sum(after.own.values()) >= size
