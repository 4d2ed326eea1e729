"""The 2-D example tells the paper's story, on the functions that adaptation uses."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.__main__ import main
from undistracted.adapt.toy import (
    ADDED,
    HALF,
    HELD_OUT,
    SIDE,
    calibration_latents,
    distance_violation,
    emit,
    recover,
    test_latents,
    train_latents,
)

test_latents.__test__ = False


def test_latents_and_their_emission(key):
    train, test = train_latents(key, 2000), test_latents(key, 2000)
    np.testing.assert_allclose([train.min(0), train.max(0)], [[0, 0], [SIDE, SIDE]], atol=0.1)
    np.testing.assert_allclose([test.min(0), test.max(0)], [[0, 0], HALF], atol=0.1)
    np.testing.assert_allclose(jnp.log(emit(train) / 0.025), train, atol=1e-5)
    spread, skewed = calibration_latents(key, 0.0), calibration_latents(key, 1.0)
    assert (spread.min(0) < 0.25 * HALF).all() and (spread.max(0) > 0.75 * HALF).all()
    assert (skewed >= 2 / 3 * HALF).all() and (skewed <= HALF).all()


def test_distances_are_kept_by_moves_and_turns_only(key):
    x = test_latents(key, 20)
    turned = x @ jnp.array([[0.6, -0.8], [0.8, 0.6]]) + 3
    np.testing.assert_allclose(distance_violation(x, turned), 0, atol=1e-6)
    assert distance_violation(x, 1.1 * x) > 0.01
    a, b = jnp.array([[0.0, 0.0], [3.0, 0.0]]), jnp.array([[0.0, 0.0], [3.1, 0.0]])
    np.testing.assert_allclose(distance_violation(a, b), 0.1**2 / 2, rtol=0.05)  # half of the pairs are of one row


def test_everything_is_drawn_and_written(tmp_path, monkeypatch, capsys):
    """Each panel's error is its own; how latents are recovered is the next test's."""

    def recover(key, latents, added, method, steps):
        amount = added.dynamics + 2 * added.calibration + 4 * added.skewed + 8 * (method == "support")
        return latents + amount / steps * np.array([0.6, 0.8])

    monkeypatch.setattr("undistracted.adapt.toy.recover", recover)
    assert main(["toy", "--steps", "4", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "toy.json").read_text())
    amounts = dict(zip(ADDED, (0, 1, 1, 5, 6), strict=True))
    assert result["error"] == {
        method: {name: round((amount + more) / 4, 3) for name, amount in amounts.items()}
        for method, more in (("distribution", 0), ("support", 8))
    }
    assert (tmp_path / "toy.png").stat().st_size > 20_000
    assert capsys.readouterr().err.count("error ") == 10


@pytest.mark.parametrize(("flag", "value"), [("--steps", "-1"), ("--seed", "-1"), ("--seed", str(2**70))])
def test_mistakes_are_told_in_one_line(flag, value, tmp_path, capsys):
    assert main(["toy", flag, value, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {flag} is {value}; it must lie between 0 and") and not (tmp_path / "out").exists()


@pytest.fixture
def optimised():
    """A loop of thousands of steps is worth compiling well."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def test_the_papers_story(optimised):
    """Distribution matching stretches whatever is added; the support constraint agrees with good calibration, and with
    a skewed one as soon as distances are kept."""

    key, truth_key = jax.random.split(jax.random.key(0))
    truth = test_latents(truth_key, HELD_OUT)

    def errors(method, *names):
        """Of several panels at once, which is quicker than one after the other."""
        added = jax.tree.map(lambda *weights: jnp.array(weights), *(ADDED[name] for name in names))
        found = jax.vmap(lambda added: recover(key, truth, added, method, 4_000))(added)
        return dict(zip(names, np.linalg.norm(found - truth, axis=-1).mean(-1), strict=True))

    skewed, rescued = "skewed calibration", "skewed calibration + dynamics"
    support = errors("support", "calibration", skewed, rescued)
    distribution = errors("distribution", *ADDED)
    assert support["calibration"] < 0.5 and support[rescued] < 0.5, support  # 0.25 to 0.38, by the CPU's rounding
    assert support[skewed] > 0.7, support
    assert distribution.pop("calibration") > 0.5 and min(distribution.values()) > 0.7, distribution
