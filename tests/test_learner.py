"""Compiled learning: traced once, decided by the seed, alike for one seed or several, fused or not; and it learns."""

import jax
import numpy as np
import pytest

from undistracted import learner as module
from undistracted.agents.latent import LatentAgent
from undistracted.data import Batch
from undistracted.learner import Learner, replay_home
from undistracted.seeds import Seeds

ACTION_SIZE, ROWS = 6, 24  # actions as of a walker and of toys: runs of them share what is compiled here


def experience(seeds, envs: int, rows: int = ROWS) -> list[Batch]:
    """Rows (S, E, ...): noise by seed; each environment's episodes are 7 steps long, one row out of phase."""
    streams = [np.random.default_rng(seed) for seed in seeds]

    def row(t):
        first = np.broadcast_to((t + np.arange(envs)) % 8 == 0, (len(seeds), envs))
        obs = np.stack([rng.integers(0, 256, (envs, 64, 64, 3), np.uint8) for rng in streams])
        action = np.stack([rng.uniform(-1, 1, (envs, ACTION_SIZE)) for rng in streams]) * ~first[..., None]
        reward = np.stack([rng.normal(size=envs) for rng in streams]) * ~first
        return Batch(obs, action.astype(np.float32), reward.astype(np.float32), first)

    return [row(t) for t in range(rows)]


def filled(config, devices=1) -> Learner:
    learner = Learner(config, ACTION_SIZE, devices=jax.devices()[:devices])
    for row in experience(range(config.seed, config.seed + config.seeds), config.envs):
        learner.add(row)
    return learner


def trained(config, updates=3, devices=1) -> tuple[Learner, list[dict]]:
    learner = filled(config, devices)
    learner.update(updates)
    return learner, learner.metrics()


@pytest.fixture(scope="module")
def alone(tiny):
    """Seed 1 after three updates."""
    return trained(tiny(seed=1))


def assert_close(actual, expected, **tolerance):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("devices, call", [(1, "_block"), (2, "_update")])
def test_update_and_act_are_traced_and_compiled_once(config, monkeypatch, devices, call):
    traces = {"update": 0, "act": 0}

    def counted(name):
        original = getattr(LatentAgent, name)

        def method(self, *args):
            traces[name] += 1
            return original(self, *args)

        return method

    for name in traces:
        monkeypatch.setattr(LatentAgent, name, counted(name))
    learner = Learner(config, ACTION_SIZE, devices=jax.devices()[:devices])
    carry, counts = learner.initial_carry(config.envs), []
    for t, row in enumerate(experience([0], config.envs)):
        learner.add(row)
        _, carry = learner.act(carry, row, t)
        if t >= config.length:
            learner.update(1 + t % 3)
            counts.append(dict(traces))
    learner.metrics()
    learner.update(2)
    assert counts[0] == {"update": 1, "act": 1}
    assert [*counts, traces] == [counts[0]] * (1 + len(counts))
    assert learner.updates > ROWS
    # Loose arrays and those tied to a device would be compiled for one after the other, at a minute each on a GPU.
    assert [f._cache_size() for f in (getattr(learner, call), learner._act[True], learner._add)] == [1, 1, 1]


def test_the_host_is_never_far_ahead_of_parts(config, monkeypatch):
    """Or they wait for each other, some time in some hundred updates, until XLA ends the process."""
    learner, calls = filled(config, devices=2), [0]  # of updates, between one time of waiting and the next
    update, wait = learner._update, jax.block_until_ready

    def counted(*args):
        calls[-1] += 1
        return update(*args)

    def waited(arrays):
        calls.append(0)
        return wait(arrays)

    monkeypatch.setattr(learner, "_update", counted)
    monkeypatch.setattr(jax, "block_until_ready", waited)
    for owed in (1, 2, 30):
        learner.update(owed)
    assert sum(calls) == 33
    assert max(calls) == module.AHEAD


def test_metrics_are_means_since_the_last_call_and_decided_by_the_seed(tiny, alone):
    learner, single = filled(tiny(seed=1)), []
    for _ in range(3):
        learner.update(1)
        single.append(learner.metrics()[0])
    for name, mean in alone[1][0].items():
        assert np.isfinite(mean)
        assert mean == float(np.float32(sum(np.float32(m[name]) for m in single))) / 3, name
    assert learner.metrics() == [{}]
    assert_close(learner.state, alone[0].state, rtol=0)


@pytest.mark.parametrize("devices, share", [(1, 4), pytest.param(2, 2, marks=pytest.mark.slow), (4, 1)])
def test_a_seed_among_others_learns_what_it_learns_alone(tiny, alone, devices, share):
    learner, metrics = trained(tiny(seed=0, seeds=4), devices=devices)
    assert learner.seeds.share == share
    for array in jax.tree.leaves((learner.state, learner.replay)):
        assert len(array.sharding.device_set) == devices
    for name, value in alone[1][0].items():
        assert metrics[1][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for name in ("reward_loss", "kl", "actor_loss", "value"):
        assert metrics[0][name] != pytest.approx(metrics[1][name], rel=1e-3)
    second = jax.tree.map(lambda x: x[1:2], learner.state.policy)
    assert_close(second, alone[0].state.policy, rtol=1e-4, atol=1e-5)
    names = "act_keys", "update_keys", "sample_keys"
    own, single = (np.stack([jax.random.key_data(getattr(x, name)) for name in names]) for x in (learner, alone[0]))
    assert len(np.unique(own.reshape(12, -1), axis=0)) == 12
    np.testing.assert_array_equal(own[:, 1:2], single)
    row = experience([5] * 4, 2)[0]
    actions, _ = learner.act(learner.initial_carry(2), row, 3)
    action, _ = alone[0].act(alone[0].initial_carry(2), jax.tree.map(lambda x: x[1:2], row), 3)
    np.testing.assert_allclose(actions[1], action[0], atol=1e-4)
    assert learner._act[True]._cache_size() == learner._block._cache_size() == 1


def test_seeds_explore_each_in_its_own_way(tiny):
    """With the same policy and rows, whose means are the same."""
    learner = Learner(tiny(seeds=2), ACTION_SIZE, devices=jax.devices()[:1])
    policy = jax.tree.map(lambda x: x[:1].repeat(2, 0), learner.state.policy)
    learner.state = learner.state._replace(policy=policy)
    row, carry = experience([5, 5], 2)[0], learner.initial_carry(2)
    (one, other), _ = learner.act(carry, row, 3)
    assert np.abs(one - other).max() > 1e-2
    (one, other), _ = learner.act(carry, row, 3, policy)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_seeds_use_as_many_devices_as_divide_them():
    used = {count: len(Seeds(count).devices) for count in (1, 2, 3, 4, 6, 8)}
    assert used == {1: 1, 2: 2, 3: 3, 4: 4, 6: 3, 8: 4}


def test_fused_block_is_the_updates_one_by_one(tiny, alone, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # where the learner fuses a block of updates
    fused, metrics = trained(tiny(seed=1, updates_per_step=1.5))
    assert fused.block == 3 and alone[0].block == 1
    assert fused.updates == alone[0].updates == 3
    for name, value in alone[1][0].items():
        assert metrics[0][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert_close(fused.state.policy, alone[0].state.policy, rtol=1e-4, atol=1e-5)


def test_replay_that_does_not_fit_stays_on_the_host(tiny, alone, monkeypatch):
    """The second CPU device plays the host, the first the device that learns."""
    monkeypatch.setattr("undistracted.learner.replay_home", lambda shapes, seeds: Seeds(1, jax.devices()[1:2]))
    learner, metrics = trained(tiny(seed=1))
    assert {leaf.device for leaf in jax.tree.leaves(learner.replay)} == {jax.devices()[1]}
    assert {leaf.device for leaf in jax.tree.leaves(learner.state)} == {jax.devices()[0]}
    for name, value in alone[1][0].items():
        assert metrics[0][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_where_the_replay_lives(monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 1000}

    def home(rows, count, devices=1):
        seeds = Seeds(count, jax.devices()[:devices])
        seeds.devices = [Device()] * devices
        home = replay_home(np.zeros(rows, np.uint8), seeds)
        assert home.count == count
        return "device" if home is seeds else {d.platform for d in home.devices}

    assert home(300, 2) == home(300, 4, devices=2) == "device"
    with pytest.warns(UserWarning, match="--replay-size"):
        assert home(300, 3) == {"cpu"}
    with pytest.warns(UserWarning, match="--replay-size"):
        assert home(300, 6, devices=2) == {"cpu"}


def test_policy_copy_outlives_the_updates(alone):
    learner = alone[0]
    copy, before = learner.policy_copy(), jax.tree.map(np.array, learner.state.policy)
    learner.update(1)
    assert_close(copy, before, atol=0)
    assert not np.allclose(
        copy.model.reward.mlp.layers[0].weight, learner.state.policy.model.reward.mlp.layers[0].weight
    )


def test_reward_is_learnt_from_the_picture(config):
    """Rewards of +-1, drawn anew at each row and shown as bright or dark: guessing costs the variance, 1 / 2."""
    learner, rng = Learner(config, ACTION_SIZE), np.random.default_rng(0)
    for row in experience([0], config.envs, 32):
        reward = rng.choice([-1.0, 1.0], row.reward.shape).astype(np.float32)
        obs = row.obs // 2 + np.uint8(127) * (reward > 0)[..., None, None, None].astype(np.uint8)
        learner.add(row._replace(obs=obs, reward=reward, first=np.zeros_like(row.first)))
    learner.update(5)
    before = learner.metrics()[0]["reward_loss"] - 0.5 * np.log(2 * np.pi)
    learner.update(100)
    learner.metrics()
    learner.update(20)
    after = learner.metrics()[0]["reward_loss"] - 0.5 * np.log(2 * np.pi)
    assert before > 0.4
    assert after < 0.05


def test_bfloat16_and_float32_losses_agree(tiny, alone):
    """After three updates from the same parameters and rows: within 0.5 %, or 0.001, where bfloat16 rounds each number
    to 0.4 %."""
    _, metrics = trained(tiny(seed=1, precision="bfloat16"))
    for name in ("reward_loss", "kl", "critic_loss", "actor_loss", "imagined_return", "value"):
        assert metrics[0][name] == pytest.approx(alone[1][0][name], rel=5e-3, abs=1e-3), name
    assert metrics[0]["kl"] != pytest.approx(alone[1][0]["kl"], rel=1e-5), "products are rounded"
