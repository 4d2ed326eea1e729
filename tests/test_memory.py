"""What a learner on CPU cores asks of the system's allocator, in a process of its own: it holds for a whole process."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from undistracted.memory import keep_freed_memory

def faults(blocks):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(blocks):
        np.ones(40_000_000, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if {keep}:
    assert keep_freed_memory()
faults(2)
print(faults(5))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_blocks_are_used_again_without_new_pages():
    def faults(keep):
        return int(subprocess.check_output([sys.executable, "-c", FAULTS.format(keep=keep)], text=True))

    # Blocks of 40 MB are 20 large pages each, or 10,000 small ones; up to 32 MB glibc learns to keep them by itself.
    assert faults(keep=True) < 10 <= faults(keep=False)


def test_elsewhere_nothing_happens(monkeypatch):
    from undistracted.memory import keep_freed_memory

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()
