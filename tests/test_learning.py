"""The promise of the small preset: in minutes on two cores, a multiple of the random policy's return on unseen film."""

import json

import pytest

from undistracted.checkpoint import newest
from undistracted.presets import preset_config
from undistracted.training import train


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_small_preset_learns_a_distracted_task(tmp_path, seed):
    run = tmp_path / "run"
    summary = train(preset_config("distracted/walker-walk", "small", seed=seed, run=str(run)))
    counters = json.loads((run / "checkpoints" / f"{newest(run):09d}" / "counters.json").read_text())
    returns = counters["random_returns"]
    assert summary["test"]["return"] >= 3 * sum(returns) / len(returns)
