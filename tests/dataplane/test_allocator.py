"""Memory that was freed leaves the process."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
from dataplane import allocator

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if sys.argv[1] == "tuned":
    allocator.tune()
held = [np.ones(15_000) for _ in range(1000)]
del held[::2]
many = [np.ones(16_000) for _ in range(1000)]
kept = many[::50]
before = resident()
del many, held
allocator.give_back()
print(before - resident())
"""


@pytest.mark.parametrize("how", ["plain", "tuned"])
def test_what_is_given_back_no_longer_counts(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50 << 20
