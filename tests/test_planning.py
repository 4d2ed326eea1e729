"""MPPI on functions whose optimum is known."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.planning import WIDEST, Plan, draw, linear, mppi, warm_start, weighted_moments

SETTINGS = SimpleNamespace(samples=256, elites=32, rounds=8, temperature=3.0, momentum=0.1)
ZERO, NOBODY = jnp.zeros((3, 2)), jnp.zeros((0, 3, 2))
BEST = jnp.array([[0.5, -0.3], [-0.8, 0.1], [0.0, 0.9]])


def quadratic(best):
    return lambda actions: -((actions - best) ** 2).sum((1, 2))


def plan(value, mean=ZERO, proposals=NOBODY, floor=0.01, seed=0, **changes) -> Plan:
    settings = SimpleNamespace(**vars(SETTINGS) | changes)
    return jax.jit(lambda key: mppi(value, mean, proposals, floor, key, settings))(jax.random.key(seed))


def test_finds_the_optimum_of_a_quadratic():
    found = plan(quadratic(BEST))
    np.testing.assert_allclose(found.mean, BEST, atol=0.05)
    assert np.asarray(found.value).max() > -0.01 and float(found.weight.sum()) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(draw(found, jax.random.key(0)), BEST[0], atol=0.15)


def test_stays_at_the_bound_where_the_optimum_is_beyond_it():
    found = plan(quadratic(jnp.full((3, 2), 3.0)))
    assert np.asarray(found.mean).min() > 0.9 and np.abs(found.elites).max() <= 1


def test_every_environment_finds_its_own():
    best = jnp.stack([BEST, -BEST])
    found = jax.vmap(lambda best, key: mppi(quadratic(best), 0 * best, NOBODY, 0.01, key, SETTINGS))(
        best, jax.random.split(jax.random.key(1))
    )
    np.testing.assert_allclose(found.mean, best, atol=0.05)


def test_std_lies_between_floor_and_ceiling():
    assert np.asarray(plan(quadratic(BEST), floor=0.3).std).min() == pytest.approx(0.3)
    apart = jnp.stack([jnp.full((3, 2), 5.0), jnp.full((3, 2), -5.0)])  # unlike samples, which are clipped
    found = plan(lambda actions: jnp.zeros(len(actions)), proposals=apart, samples=0, elites=2)
    np.testing.assert_array_equal(found.std, WIDEST)


def test_a_proposal_better_than_all_samples_wins():
    spike = jnp.float32(BEST)
    found = plan(lambda a: 100.0 * (jnp.abs(a - spike).max((1, 2)) < 1e-6), proposals=spike[None], rounds=1)
    np.testing.assert_allclose(found.mean, 0.9 * spike, atol=1e-4)  # momentum keeps a tenth of the mean before: zero
    np.testing.assert_allclose(draw(found, jax.random.key(0)), spike[0], atol=1e-6)


def test_values_that_are_no_numbers_count_as_zero():
    found = plan(lambda a: jnp.where(a[:, 0, 0] > 0, jnp.nan, 1.0), rounds=1)
    assert np.asarray(found.elites)[:, 0, 0].max() <= 0


def test_one_round_by_hand():
    """One action, three proposals, no samples: two elites, weighted by exp(value), and the rest of the mean."""
    proposals, worth = jnp.array([0.2, -0.6, 1.0])[:, None, None], jnp.array([2.0, 1.0, 0.0])
    settings = SimpleNamespace(samples=0, elites=2, rounds=1, temperature=0.5, momentum=0.25)
    found = mppi(lambda _: worth, jnp.full((1, 1), 0.8), proposals, 0.05, jax.random.key(0), settings)
    weight = np.exp([1.0, 0.5]) / np.exp([1.0, 0.5]).sum()
    mean = weight @ [0.2, -0.6]
    np.testing.assert_allclose(found.weight, weight, rtol=1e-5)
    np.testing.assert_allclose(found.mean, [[0.25 * 0.8 + 0.75 * mean]], rtol=1e-5)
    np.testing.assert_allclose(found.std, [[np.sqrt(weight @ (np.array([0.2, -0.6]) - mean) ** 2)]], rtol=1e-5)


def test_weighted_moments_are_those_of_repeated_values():
    x = np.random.default_rng(0).normal(size=(3, 2, 2))
    mean, std = weighted_moments(jnp.float32(x), jnp.array([0.5, 0.25, 0.25]))
    repeated = x[[0, 0, 1, 2]]
    np.testing.assert_allclose(mean, repeated.mean(0), rtol=1e-5)
    np.testing.assert_allclose(std, repeated.std(0), rtol=1e-4)


def test_warm_start_is_the_old_plan_one_step_on():
    mean = jnp.arange(1.0, 6)[:, None]
    assert warm_start(mean, 5)[:, 0].tolist() == [2, 3, 4, 5, 0]
    assert warm_start(mean, 3)[:, 0].tolist() == [2, 3, 0, 0, 0]
    assert warm_start(mean, 1)[:, 0].tolist() == [0, 0, 0, 0, 0]


def test_linear():
    assert [float(linear(0.5, 0.05, p)) for p in (0, 0.5, 1, 3)] == pytest.approx([0.5, 0.275, 0.05, 0.05])
