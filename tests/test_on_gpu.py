"""What no emulation shows: on a GPU loads and copies take time, and the compiler orders them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_kernels.py"


def capability() -> str:
    """Of the first GPU, as "9.0"; empty without one."""
    if not shutil.which("nvidia-smi"):
        return ""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.partition("\n")[0].strip()


@pytest.mark.slow
@pytest.mark.skipif(capability() != "9.0", reason="kernels run on Hopper GPUs")
@pytest.mark.parametrize("seeds", [1, 4])
def test_kernels_give_xlas_gradients_and_the_same_bits(seeds):
    """In a process that compiles with all optimisations, which tests do without."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # beside other tests
    command = [sys.executable, str(SCRIPT), "distracted/walker-walk", "--seeds", str(seeds)]
    subprocess.run(command, env=environment, check=True)
