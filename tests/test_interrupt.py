"""Ctrl-C: a request at first, then the end."""

import subprocess
import sys

import pytest

TWICE = """
import signal
from undistracted.interrupt import asked_to_stop
with asked_to_stop() as request:
    signal.raise_signal(signal.{0})
    print("asked", request.stop, flush=True)
    signal.raise_signal(signal.{0})
    print("still here")
"""


@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_second_one_ends_the_process_at_once(name, code):
    """Not by an exception, which may come in the midst of JAX."""
    ended = subprocess.run([sys.executable, "-c", TWICE.format(name)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "asked True\n", "")
