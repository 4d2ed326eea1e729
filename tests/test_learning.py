"""The promise of the small preset: in minutes on two cores, a multiple of the random policy's return on unseen film."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from undistracted.checkpoint import newest


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_small_preset_learns_a_distracted_task(tmp_path, seed):
    """As a user runs it: in a process that compiles with all optimisations, which tests do without."""
    run, task = tmp_path / "run", "distracted/walker-walk"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, "-m", "undistracted", "train", task, "--preset", "small", "--seed", str(seed)]
    subprocess.run([*command, "--run", str(run)], env=environment, check=True)
    counters = json.loads((run / "checkpoints" / f"{newest(run):09d}" / "counters.json").read_text())
    with (run / "eval.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    last = [float(row["return"]) for row in rows if row["step"] == rows[-1]["step"]]
    assert np.mean(last) >= 2 * np.mean(counters["random_returns"])
