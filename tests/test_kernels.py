"""Kernels of our own, emulated on a CPU, against the plain functions that they replace: values, gradients, seeds."""

import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulation import compiled, emulated

from undistracted import behaviour
from undistracted.agents import make_agent
from undistracted.data import Batch
from undistracted.kernels import dream as kernels
from undistracted.kernels import filter as filtering
from undistracted.kernels import launch
from undistracted.kernels.rows import Sizes, text_of
from undistracted.kernels.weigh import weigh
from undistracted.presets import complete, preset_config
from undistracted.rssm import RSSM, Latent, filter_sequences, fresh_start, official_start

ACTIONS = 3
# No size is a whole number of the kernels' tiles, and rows fill no block.
SIZES = dict(belief=24, state=6, hidden=40, width=48, horizon=3, length=7, batch=3, precision="bfloat16")
by_emulation = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are emulated by way of g++")


@pytest.fixture
def kernels_run(monkeypatch):
    monkeypatch.setattr(launch, "kernel_call", emulated)
    monkeypatch.setattr(launch, "available", lambda: True)


def agent(agent="repo", **changes):
    config = complete(preset_config("distracted/walker-walk", "debug", agent, prefill=100, **SIZES | changes))
    return make_agent(config, ACTIONS)


def way_of(agent) -> behaviour.Way:
    state = jax.eval_shape(agent.init, jax.random.key(0))
    return agent.way(state.policy.actor, state.critic, state.policy.model)


def error(actual, expected) -> float:
    actual, expected = (np.asarray(x, np.float64) for x in (actual, expected))
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def assert_alike(actual, expected, tolerance: float):
    """As far as bfloat16 goes: both round, in other places."""
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        assert error(x, y) < tolerance


def seeds_of(tree, count: int):
    return jax.tree.map(lambda x: x[0] if count == 1 else x, tree)


# Weights that come through the ring in one piece; and, with a ring of few stages, in many.
LARGE = dict(belief=136, state=10, hidden=136, width=136, horizon=2)


@by_emulation
@pytest.mark.parametrize(
    "seeds, rows, sizes, memory", [(1, 21, SIZES, None), (2, 21, SIZES, None), (1, 24, SIZES | LARGE, 120_000)]
)
def test_a_dream_is_the_plain_one(kernels_run, monkeypatch, seeds, rows, sizes, memory):
    monkeypatch.setattr(launch, "PROCESSORS", 1)  # two seeds' blocks do not run at once, and are the widest
    monkeypatch.setattr(launch, "SHARED_MEMORY", memory or launch.SHARED_MEMORY)
    one, latent = agent(**sizes), sizes["belief"] + sizes["state"]
    states = jax.vmap(one.init)(jax.random.split(jax.random.key(0), seeds))
    keys = jax.random.split(jax.random.key(1), 3)
    belief, state = (
        jax.random.normal(key, (seeds, rows, sizes[x])) for key, x in zip(keys, ("belief", "state"), strict=False)
    )
    start = Latent(belief / 2, state)

    def both(state, start):
        networks = state.policy.actor, state.critic, state.policy.model
        options = dict(horizon=sizes["horizon"], gamma=0.9, lambda_=0.8, discounted=True)
        return [way.dream(*networks, start, keys[2], **options) for way in (kernels.FUSED, behaviour.PLAIN)]

    assert way_of(one) is kernels.FUSED
    fused, plain = (jax.vmap(both) if seeds > 1 else both)(*seeds_of((states, start), seeds))
    np.testing.assert_array_equal(
        fused.critic.inputs[0][..., :latent], fused.features
    )  # the kernels' states fill a tile
    assert not fused.critic.inputs[0][..., latent:].any()
    inputs, slopes = fused.critic.inputs[1:], fused.critic.slopes
    assert_alike((inputs, slopes), (plain.critic.inputs[1:], plain.critic.slopes), 1e-2)
    assert_alike(fused.critic.value, plain.critic.value, 1e-2)
    assert_alike(fused._replace(critic=()), plain._replace(critic=()), 1e-2)


@by_emulation
@pytest.mark.parametrize("seeds", [1, 2])
def test_an_update_is_the_plain_one(kernels_run, seeds):
    """Moments of the first update are its gradients."""
    rng, shape = np.random.default_rng(0), (seeds, 7, 3)
    obs = rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8)
    action, reward = rng.uniform(-1, 1, (*shape, ACTIONS)), rng.uniform(0, 1, shape)
    first = np.zeros(shape, bool)
    first[:, 3, 1] = True
    batch = Batch(*map(jnp.asarray, (obs, action.astype(np.float32), reward.astype(np.float32), first)))
    found = []
    for by_kernels in (True, False):
        one = agent(kernels=by_kernels)
        states = jax.vmap(one.init)(jax.random.split(jax.random.key(0), seeds))
        update = jax.vmap(one.update, (0, 0, None)) if seeds > 1 else one.update
        state, metrics = jax.jit(update)(*seeds_of((states, batch), seeds), jax.random.key(2))
        found.append(([eqx.filter(state.moments[x], eqx.is_inexact_array) for x in ("actor", "critic")], metrics))
        assert way_of(one) is (kernels.FUSED if by_kernels else behaviour.PLAIN)
        assert (state.policy.model.rssm.filter is filtering.filter_sequences) == by_kernels
    (fused, by_fused), (plain, by_plain) = found
    assert_alike(fused, plain, 2e-2)
    for metric in by_plain:
        np.testing.assert_allclose(by_fused[metric], by_plain[metric], rtol=2e-2, atol=1e-4, err_msg=metric)


@by_emulation
@pytest.mark.parametrize("seeds, boundary", [(1, fresh_start), (2, fresh_start), (1, official_start)])
def test_filtering_is_the_plain_one(kernels_run, seeds, boundary):
    steps, rows, encoding = 4, 21, 10
    keys = jax.random.split(jax.random.key(3), 9)
    make = eqx.filter_vmap(
        lambda key: RSSM(ACTIONS, encoding, belief=40, state=6, hidden=48, key=key, dtype="bfloat16", boundary=boundary)
    )
    models = make(jax.random.split(keys[0], seeds))
    x = jax.random.normal(keys[1], (seeds, steps, rows, encoding))
    action = jax.random.uniform(keys[2], (seeds, steps, rows, ACTIONS), minval=-1)
    first = jax.random.bernoulli(keys[3], 0.3, (seeds, steps, rows)).at[:, 0].set(True)
    pulls = [
        jax.random.normal(key, (seeds, steps, rows, size)) for key, size in zip(keys[4:8], (40, 6, 6, 6), strict=True)
    ]

    def gradient(filter, model, x, action, first, pulls):
        def value(model, x, action):
            moved, forget = model.boundary(action, first)
            latent, posterior = filter(model, moved, x, first, forget, keys[8])
            return sum((a * b).sum() for a, b in zip((*latent, *posterior), pulls, strict=True)), (latent, posterior)

        (_, outputs), own = eqx.filter_value_and_grad(value, has_aux=True)(model, x, action)
        by_inputs = jax.grad(lambda x, action: value(model, x, action)[0], (0, 1))(x, action)
        return outputs, jax.tree.leaves(eqx.filter(own, eqx.is_array)), by_inputs

    args = seeds_of((models, x, action, first, pulls), seeds)
    run = eqx.filter_jit(eqx.filter_vmap(gradient, in_axes=(None, 0, 0, 0, 0, 0)) if seeds > 1 else gradient)
    fused, plain = (run(way, *args) for way in (filtering.filter_sequences, filter_sequences))
    assert_alike(fused[0], plain[0], 2e-3)
    for x, y in zip(jax.tree.leaves(fused[1:]), jax.tree.leaves(plain[1:]), strict=True):
        assert error(x, y) < 1e-2 if np.any(y) else not np.any(x)  # the prior has no part in it


@by_emulation
@pytest.mark.parametrize(
    "seeds, rows, inputs, outputs, skip, scaled",
    [
        (2, 13, 32, 24, 1, True),
        (1, 13, 40, 24, 0, False),  # shares that have no rows
        (1, 223, 232, 200, 0, False),  # more stages than find room, the last of them not whole
        (2, 223, 232, 200, 1, True),
        (1, 223, 200, 200, 0, True),
    ],
)
def test_weigh_sums_over_all_rows(kernels_run, monkeypatch, seeds, rows, inputs, outputs, skip, scaled):
    monkeypatch.setattr(launch, "PROCESSORS", 4)
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (seeds, 4 + skip, rows, inputs)).astype(jnp.bfloat16)
    sums = jax.random.normal(keys[1], (seeds, 4, rows, outputs)).astype(jnp.bfloat16)
    scale = jax.random.normal(keys[2], (seeds, 4, rows)) if scaled else None
    args = seeds_of((x, sums, scale), seeds)
    weight, bias = (jax.vmap(weigh, (0, 0, 0, None)) if seeds > 1 else weigh)(*args, skip)
    whole = sums.astype(jnp.float32) * (scale[..., None] if scaled else 1)
    expected = jnp.einsum("stni,stno->sio", x[:, skip:].astype(jnp.float32), whole), whole.sum((1, 2))
    assert_alike((weight, bias), seeds_of(expected, seeds), 5e-3)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, True),
        (dict(width=400), False),
        (dict(belief=20), False),
        (dict(state=5), False),
        (dict(reward_depth=2), False),
        (dict(belief=96, state=128, hidden=96, width=96), True),
        (dict(belief=96, state=136, hidden=96, width=96), False),
        (dict(belief=200, state=34, hidden=200, width=200), False),
    ],
)
def test_networks_that_do_not_fit_are_left_to_xla(kernels_run, changes, expected):
    assert way_of(agent(kernels=True, **changes)) is (kernels.FUSED if expected else behaviour.PLAIN)


def test_paper_sizes_fit():
    assert filtering.fits(filtering.Sizes(200, 30, 200, 50, 50))
    state = jax.eval_shape(agent(belief=200, state=30, hidden=200, width=200).init, jax.random.key(0))
    assert kernels.fits(state.policy.actor, state.critic, state.policy.model)


@by_emulation
@pytest.mark.parametrize("name", ["imagine", "judge", "pull_back", "blame"])
@pytest.mark.parametrize("sizes", [(104, 128, 40, 232, 232), (8, 2, 1, 8, 8)], ids=str)
def test_kernels_compile_at_the_limits_of_what_fits(name, sizes, tmp_path):
    sizes = Sizes(*sizes, 15, 16)
    constants = launch.constants(**sizes._asdict(), WARPS=sizes.crew(name, 10**6), MEMORY=launch.SHARED_MEMORY)
    compiled(name, constants + text_of(name), flags=["-O0"])


def test_a_cpu_goes_without_kernels(kernels_run, monkeypatch):
    monkeypatch.undo()
    assert not launch.available()
    one = agent(kernels=True)
    assert way_of(one) is behaviour.PLAIN
    assert jax.eval_shape(one.init, jax.random.key(0)).policy.model.rssm.filter is filter_sequences


def test_float32_goes_without_kernels(kernels_run):
    one = agent(kernels=True, precision="float32")
    assert way_of(one) is behaviour.PLAIN
    assert jax.eval_shape(one.init, jax.random.key(0)).policy.model.rssm.filter is filter_sequences


@pytest.mark.parametrize(
    "name, way", [("dreamer", kernels.FUSED), ("tia", kernels.FUSED), ("denoised-mdp", behaviour.PLAIN)]
)
def test_agents_whose_latents_are_others_imagine_by_xla(kernels_run, name, way):
    assert way_of(agent(name, kernels=True)) is way
