"""Environments of every family: what they pay, that a seed decides all, and how they are named."""

import subprocess
import sys

import numpy as np
import pytest
from toy import check_api, rollout

from undistracted.envs import check_task, domain, make_env, task_names
from undistracted.errors import UserError

FAMILIES = ["dmc/cartpole-swingup", "distracted/walker-walk", "scoreboard/ball_in_cup-catch"]


@pytest.mark.parametrize("task", FAMILIES)
def test_follows_the_gymnasium_api(task):
    check_api(make_env(task))


@pytest.mark.parametrize("task", FAMILIES)
def test_a_seed_decides_everything(task):
    frames, rewards = rollout(make_env(task), 15, seed=3)
    other = make_env(task, seed=5)
    rollout(other, 4)
    again = rollout(other, 15, seed=3)
    assert np.array_equal(frames, again[0]) and np.array_equal(rewards, again[1])
    assert not np.array_equal(frames, rollout(other, 15, seed=4)[0])
    first = rollout(make_env(task, seed=3), 15)  # make_env's seed is that of the first reset
    assert np.array_equal(frames, first[0]) and np.array_equal(rewards, first[1])
    assert not np.array_equal(frames[0], rollout(other, 0)[0][0]), "a reset without a seed starts something new"


@pytest.mark.filterwarnings("ignore:.*invalid")
def test_an_episode_ends_where_the_simulator_loses_the_state():
    env = make_env("distracted/walker-walk")
    env.reset(seed=0)
    before, *_ = env.step(np.zeros(6))
    env.unwrapped.dm.physics.data.qvel[:] = 1e12
    after, reward, terminated, truncated, _ = env.step(np.zeros(6))
    assert truncated and not terminated and reward == 0
    assert after.shape == before.shape
    frames, rewards = rollout(env, 15, seed=3)  # and the next is as if nothing had been
    again = rollout(make_env("distracted/walker-walk"), 15, seed=3)
    assert np.array_equal(frames, again[0]) and np.array_equal(rewards, again[1])


@pytest.mark.parametrize("task", ["walker-stand", "cartpole-balance", "fish-upright"])
def test_rewards_are_those_of_the_suite(task):
    from dm_control import suite

    _, plain = rollout(make_env(f"dmc/{task}"), 12, seed=7)
    _, distracted = rollout(make_env(f"distracted/{task}", split="test"), 12, seed=7)
    stock = suite.load(*task.split("-"), task_kwargs={"random": 7})
    stock.reset()
    rng = np.random.default_rng(0)
    low, high = stock.action_spec().minimum, stock.action_spec().maximum
    summed = []
    for _ in range(12):
        action = low + (rng.uniform(-1, 1, low.shape).astype(np.float32) + 1.0) / 2 * (high - low)
        summed.append(stock.step(action).reward + stock.step(action).reward)
    assert np.mean(summed) > 0.1, "nothing is decided by zeros"
    assert np.array_equal(plain, distracted)
    np.testing.assert_allclose(plain, summed, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("repeat, steps", [(2, 500), (3, 334)])
def test_an_episode_is_a_thousand_frames(repeat, steps):
    env = make_env("dmc/pendulum-swingup", action_repeat=repeat)
    for _ in range(2):
        env.reset()
        ends = [env.step(np.zeros(1))[2:4] for _ in range(steps)]
        assert ends == [(False, False)] * (steps - 1) + [(False, True)]


@pytest.mark.parametrize("task", ["stand", "hop"])
def test_official_hopper_reward(task):
    env = make_env(f"dmc/hopper-{task}", protocol="official", action_repeat=1)
    physics = env.unwrapped.dm.physics
    heights = []
    env.reset(seed=1)
    for action in np.random.default_rng(0).uniform(-1, 1, (60, 4)):
        reward = env.step(action)[1]
        heights.append(physics.height())
        standing = 0.1 ** (max(0.6 - heights[-1], 0) / 0.3) ** 2  # a Gaussian that is 0.1 at the margin
        hopping = np.clip((physics.speed() - 1) / 2 + 0.5, 0, 1) if physics.speed() >= 0 else 0
        effort = np.mean(np.maximum(1 - physics.control() ** 2, 0))
        assert reward == pytest.approx(standing * (hopping if task == "hop" else (4 + effort) / 5))
    assert min(heights) < 0.6, "the softened part was visited"


def test_names_are_those_of_the_suite():
    from dm_control import suite

    names = {f"{family}/{d}-{t}" for family in ("dmc", "distracted", "scoreboard") for d, t in suite.ALL_TASKS}
    assert set(task_names()) == names | {"gym/<EnvId>"}
    for name in names:
        check_task(name)
    assert domain("distracted/ball_in_cup-catch") == "ball_in_cup"
    assert domain("gym/Ant-v5") == ""


@pytest.mark.parametrize(
    "task, words",
    [
        ("distracted/walker-wlak", "did you mean 'distracted/walker-walk'"),
        ("walker-walk", "did you mean 'dmc/walker-walk'"),
    ],
)
def test_unknown_tasks(task, words):
    for call in (check_task, make_env):
        with pytest.raises(UserError, match=words):
            call(task)


@pytest.mark.parametrize(
    "options, words",
    [({"split": "validation"}, "split"), ({"protocol": "x"}, "protocol"), ({"render": "x"}, "render"),
     ({"action_repeat": 0}, "action_repeat"), ({"videos": "/nosuchfolder"}, "/nosuchfolder")],
)  # fmt: skip
def test_unknown_options(options, words):
    with pytest.raises(UserError, match=words):
        make_env("distracted/walker-walk", **options)


def test_importing_costs_no_simulator():
    code = (
        "import undistracted.envs, sys; print([m for m in ('dm_control', 'mujoco', 'av', 'jax') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
