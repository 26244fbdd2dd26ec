"""What is set for the whole process, looked at in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
import numpy, pyarrow, threadpoolctl
from dataplane.tuning import tune_process
tune_process()
tune_process()
blas = [lib["num_threads"] for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
print(json.dumps([sys.getswitchinterval(), blas, pyarrow.default_memory_pool().backend_name]))
"""


def test_the_process_is_tuned() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True, timeout=60)
    interval, blas, arrow = json.loads(ran.stdout)
    assert abs(interval - 0.0005) < 1e-6
    assert arrow == "system"
    assert blas
    assert set(blas) == {1}
