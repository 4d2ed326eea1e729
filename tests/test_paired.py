"""Two looks of one state, and trajectories and files of them."""

import io
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from toy import COUNTING, NEGATIVE, STEADY, episodes_of, follow, read

from undistracted.adapt.pairs import columns, drive_pairs, join, read_pairs, split
from undistracted.envs import make_env
from undistracted.envs.distracted import background_mask
from undistracted.envs.paired import PairedEnv, make_pair
from undistracted.errors import UserError

CLEAN = {"task": "dmc/walker-walk", "action_repeat": 100}  # 10 steps an episode
DISTRACTED = CLEAN | {"task": "distracted/walker-walk"}


@pytest.fixture(scope="module")
def pair():
    env = make_pair(CLEAN, DISTRACTED)
    yield env
    env.close()


def test_both_looks_are_of_one_state_and_differ_in_the_background_only(pair):
    """For two whole episodes, the second of which is not seeded."""
    physics = [env.unwrapped.dm.physics for env in (pair.source, pair.target)]
    rng, changed = np.random.default_rng(0), 0
    for seed in (5, None):
        obs, done = pair.reset(seed=seed)[0], False
        while not done:
            clean, distracted = obs[..., :3], obs[..., 3:]
            background = background_mask(clean)
            np.testing.assert_array_equal(physics[0].get_state(), physics[1].get_state())
            np.testing.assert_array_equal(clean[~background], distracted[~background])
            changed += (clean[background] != distracted[background]).mean()
            obs, _, terminated, truncated, _ = pair.step(rng.uniform(-1, 1, 6))
            done = terminated or truncated
    assert changed > 0.5 * 20, "the film is there"


def test_a_pair_is_an_environment(pair):
    alone = make_env(**CLEAN)
    obs, _ = pair.reset(seed=3)
    np.testing.assert_array_equal(obs[..., :3], alone.reset(seed=3)[0])
    action = np.full(6, 0.3, np.float32)
    ours, theirs = pair.step(action), alone.step(action)
    np.testing.assert_array_equal(ours[0][..., :3], theirs[0])
    assert ours[1:] == theirs[1:] and pair.observation_space.contains(ours[0])
    alone.close()


def test_looks_that_part_are_noticed():
    env = make_pair({"task": COUNTING}, {"task": STEADY})
    env.reset(seed=0)
    with pytest.raises(UserError, match="not of one state"):
        for _ in range(10):
            env.step(np.zeros(6))
    with pytest.raises(UserError, match="different actions"):
        PairedEnv(make_env("dmc/cartpole-swingup"), make_env(COUNTING))


@pytest.mark.parametrize("policy", ["source", "random"])
def test_driven_pairs_are_whole_trajectories_of_each_seed(tiny, policy):
    """The policy sees the source's look; the target's is its negative."""
    source, target = (tiny(task, envs=2, seeds=2, seed=4) for task in (COUNTING, NEGATIVE))

    def act(carry, row, count, policy):
        facts = [[read(frame) for frame in frames] for frames in row.obs]
        assert (row.obs.shape, policy) == ((2, 2, 64, 64, 3), "means"), "by seed, and not exploring"
        assert row.first.tolist() == [[fact.t == 0 for fact in seed] for seed in facts]
        return np.array([[[fact.t / 10] * 6 for fact in seed] for seed in facts], np.float32), carry

    learner = SimpleNamespace(initial_carry=lambda n: None, act=act, state=SimpleNamespace(policy="means"))
    trajectories = drive_pairs(source, target, learner, 5, policy)
    assert [len(each) for each in trajectories] == [5, 5]
    for each in trajectories:
        for rows in each:
            seen, negative = split(rows)
            np.testing.assert_array_equal(seen, 255 - negative)
            facts = follow(rows._replace(obs=seen))
            assert facts[0].t == 0
            chosen = [fact.action[0] == np.float32((fact.t - 1) / 10) for fact in facts[1:]]
            assert all(chosen) if policy == "source" else not any(chosen)
            assert len(episodes_of(facts)) == 1, "from its first row to its last"
    starts = {follow(rows._replace(obs=rows.obs[..., :3]))[0][:2] for each in trajectories for rows in each}
    assert len(starts) == 10, "no two alike"
    again = drive_pairs(source, target, learner, 5, policy)
    jax.tree.map(np.testing.assert_array_equal, trajectories, again)
    stream = join(trajectories)
    folded = columns(stream, 3)
    assert folded.first.shape == (2, stream.first.shape[1] // 3, 3)
    unfolded = np.concatenate([folded.obs[:, :, env] for env in range(3)], 1)
    np.testing.assert_array_equal(unfolded, stream.obs[:, : unfolded.shape[1]])


def test_pairs_from_a_file(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "pairs.npz"
    frames = rng.integers(0, 256, (2, 20, 64, 64, 3), np.uint8)
    np.savez(path, source=frames[0], target=frames[1])
    calibration, held_out = read_pairs(str(path), seeds=3)
    assert calibration.source.shape == (3, 18, 64, 64, 3) and held_out.target.shape == (3, 2, 64, 64, 3)
    np.testing.assert_array_equal(calibration.target[2], frames[1, :18])
    np.testing.assert_array_equal(held_out.source[0], frames[0, 18:])


def as_npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


FILES = {
    "nothing.npz": (None, "cannot read pairs.*No such file"),
    "empty.npz": (b"", "it is no .npz"),
    "text.npz": (b"hello", "it is no .npz"),
    "one.npy": (as_npy(np.zeros((4, 64, 64, 3), np.uint8)), "it is no .npz"),
    "one.npz": (dict(source=np.zeros((4, 64, 64, 3), np.uint8)), "target"),
    "float.npz": (dict(source=np.zeros((4, 64, 64, 3)), target=np.zeros((4, 64, 64, 3))), "must be uint8"),
    "short.npz": (dict(source=np.zeros((4, 64, 64, 3), "u1"), target=np.zeros((3, 64, 64, 3), "u1")), "the same"),
    "code.npz": (dict(source=np.array([print], object), target=np.zeros(1)), "allow_pickle"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_none(tmp_path, name):
    arrays, words = FILES[name]
    if isinstance(arrays, bytes):
        (tmp_path / name).write_bytes(arrays)
    elif arrays:
        np.savez(tmp_path / name, **arrays)
    with pytest.raises(UserError, match=words):
        read_pairs(str(tmp_path / name), 1)
