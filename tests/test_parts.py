"""A batch in parts on several devices: the update is that of the whole batch, noise and means included."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from test_learner import ACTION_SIZE, assert_close, filled, trained

from undistracted import parts
from undistracted.agents import make_agent
from undistracted.agents.model import free
from undistracted.learner import Learner

ROWS = PartitionSpec(None, parts.AXIS)  # (T, B, ...), parts of B


def in_parts(fn, *rows, count: int = 2, out_specs=ROWS):
    """`fn` of arrays (T, B), as it comes out of parts of B."""
    mesh = Mesh(jax.devices()[:count], parts.AXIS)
    return jax.shard_map(fn, mesh=mesh, in_specs=ROWS, out_specs=out_specs, check_vma=False)(*rows)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_noise_is_that_of_the_whole_batch(count):
    key, rows = jax.random.key(3), jnp.zeros((5, 8))
    noise = in_parts(lambda rows: parts.normal(key, (*rows.shape, 3)), rows, count=count)
    np.testing.assert_array_equal(noise, jax.random.normal(key, (5, 8, 3)))
    np.testing.assert_array_equal(noise, parts.normal(key, (5, 8, 3)))


def test_means_are_those_of_all_parts():
    x = jax.random.normal(jax.random.key(0), (3, 4))

    def means(x):
        each = {"mean": x.mean(), "square": (x**2).mean()}
        return parts.mean(each), parts.mean_of_rows(x)

    (tree, mean), whole = in_parts(means, x, out_specs=PartitionSpec()), means(x)
    assert_close((tree, mean), whole, rtol=1e-6)
    assert float(mean) == pytest.approx(float(x.mean()), rel=1e-6)
    assert float(tree["square"]) == pytest.approx(float((x**2).mean()), rel=1e-6)


@pytest.mark.parametrize("nats, slope", [(0.5, 1 / 12), (1.5, 0.0)])
def test_free_nats_of_the_mean_see_all_parts(nats, slope):
    """KLs of 0 in the first part and 2 in the second have a mean of 1: all of them are pushed, or none."""
    divergence = jnp.repeat(jnp.array([[0.0, 0.0, 2.0, 2.0]]), 3, 0)

    def gradient(kl):
        mean = jax.grad(lambda kl: free(kl, nats, of_mean=True).mean())(kl)
        return mean / parts.count()  # what averaging gradients does to each row's

    np.testing.assert_allclose(in_parts(gradient, divergence), jnp.full((3, 4), slope), rtol=1e-6)


@pytest.mark.parametrize("agent", ["repo", "dreamer", "tia", "denoised-mdp"])
def test_an_update_in_parts_is_that_of_the_whole_batch(tiny, agent):
    config = tiny(agent=agent, seed=1, foresight=2, free_nats_of_mean=True)
    whole, metrics = trained(config)
    halves, metrics_of_halves = trained(config, devices=2)
    assert (whole.seeds.parts, halves.seeds.parts) == (1, 2)
    for array in jax.tree.leaves(halves.state):
        assert len(array.sharding.device_set) == 2
    for name, value in metrics[0].items():
        assert metrics_of_halves[0][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert_close(halves.state.policy, whole.state.policy, rtol=1e-4, atol=1e-5)


def test_devices_hold_the_same_parameters_and_their_own_rows(tiny):
    learner = filled(tiny(), devices=4)
    batch = learner.seeds.put_batch(learner._sample(learner.replay, learner.sample_keys, 0))
    assert {shard.data.shape[:3] for shard in batch.obs.addressable_shards} == {(1, 8, 1)}
    learner.update(2)
    for array in jax.tree.leaves(learner.state):
        first, *others = (np.asarray(shard.data) for shard in array.addressable_shards)
        for other in others:
            np.testing.assert_array_equal(first, other)
    assert {leaf.device for leaf in jax.tree.leaves(learner.replay)} == {jax.devices()[0]}


@pytest.mark.parametrize("seeds, devices, share", [(2, 4, 1), (3, 2, 3)])
def test_seeds_come_first_and_parts_use_what_is_left(tiny, seeds, devices, share):
    learner, metrics = trained(tiny(seeds=seeds), devices=devices)
    assert (learner.seeds.share, learner.seeds.parts, len(learner.seeds.devices)) == (share, 2, devices)
    _, alone = trained(tiny(seed=1))
    for name, value in alone[0].items():
        assert metrics[1][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(
    "sizes, most, expected",
    [
        (dict(batch=16, length=20, start_every=2), 2, 2),
        (dict(batch=16, length=20, start_every=2), 16, 4),  # a part of 2 sequences has 20 starts: no whole eights
        (dict(batch=16, length=20), 3, 2),
        (dict(batch=15, length=20), 2, 1),
        (dict(batch=50, length=50), 2, 1),  # 1250 starts of each half would be 2 less
    ],
)
def test_number_of_parts(tiny, sizes, most, expected):
    assert make_agent(tiny(**sizes, prefill=200, replay_size=200), ACTION_SIZE).parts(most) == expected


def test_agents_without_parts_and_players_use_one_device(tiny):
    alone = Learner(tiny(agent="deepmdp"), ACTION_SIZE), Learner(tiny(), ACTION_SIZE, replay=False)
    assert [len(learner.seeds.devices) for learner in alone] == [1, 1]
    assert Learner(tiny(), ACTION_SIZE).seeds.parts == len(jax.devices())


def devices_after(program: str, *args, flags: str = "") -> int:
    run = [sys.executable, "-c", f"{program}\nimport jax; print(len(jax.devices()))", *map(str, args)]
    env = os.environ | {"XLA_FLAGS": flags}
    return int(subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout.split()[-1])


COMPLETE = """
from undistracted.training import train
from undistracted.presets import complete, preset_config
complete(preset_config("distracted/walker-walk", "small"))
"""
RESUME = """
import sys, pathlib
from undistracted.config import Config
from undistracted.learner import Learner
Learner(Config.load_run(pathlib.Path(sys.argv[1])), 6, replay=sys.argv[2] == "True")
"""


def test_each_core_is_a_device_unless_jax_was_told_otherwise():
    assert devices_after(COMPLETE) == parts.cores()
    assert devices_after(COMPLETE, flags="--xla_force_host_platform_device_count=3") == 3
    assert devices_after("import jax; jax.devices()" + COMPLETE) == 1


@pytest.mark.parametrize("replay", [True, False])
def test_a_resumed_run_has_as_many_devices_and_a_player_one(tiny, tmp_path, replay):
    """Settings that were saved are complete, so nobody has asked for the machine before."""
    tiny().save(tmp_path / "config.json")
    assert devices_after(RESUME, tmp_path, replay) == (parts.cores() if replay else 1)
