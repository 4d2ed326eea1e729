"""Environments: what they show, what they pay, and that a seed decides both."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from toy import check_api

from undistracted.envs import check_task, domain, make_env, task_names
from undistracted.envs.distracted import Distracted, Scoreboard, background_mask, composite, draw
from undistracted.envs.dmc import DMC
from undistracted.envs.video import Clips
from undistracted.errors import UserError

FAMILIES = ["dmc/cartpole-swingup", "distracted/walker-walk", "scoreboard/ball_in_cup-catch"]


def counting_clips(*lengths):
    """Clip i, frame t is one flat tone: 100 i + t."""
    films = [np.full((n, 64, 64), 100 * i, np.uint8) + np.arange(n, dtype=np.uint8)[:, None, None]
             for i, n in enumerate(lengths)]  # fmt: skip
    return Clips(tuple(films), tuple(map(str, lengths)))


def tone(frame):
    """The film's tone: cartpole's top left pixel is always sky."""
    assert len(set(frame[0, 0])) == 1
    return int(frame[0, 0, 0])


def rollout(env, steps, seed=None, action_seed=0):
    rng = np.random.default_rng(action_seed)
    frames, rewards = [env.reset(seed=seed)[0]], []
    for _ in range(steps):
        frame, reward, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        frames.append(frame)
        rewards.append(reward)
    return np.stack(frames), np.array(rewards)


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


@given(arrays(np.uint8, (6, 5, 3)), arrays(np.uint8, st.sampled_from([(6, 5), (6, 5, 3)])))
def test_composite_replaces_the_background_only(frame, background):
    result = composite(frame, background)
    for index in np.ndindex(6, 5):
        red, green, blue = (int(value) for value in frame[index])
        expected = background[index] if blue > red and blue > green else frame[index]
        assert np.array_equal(result[index], np.broadcast_to(expected, 3))
    assert result.dtype == np.uint8


@pytest.mark.parametrize("render", ["fast", "faithful"])
def test_distraction_leaves_the_agent_as_it_is(render):
    clean, _ = rollout(make_env("distracted/walker-walk", split="clean", render=render), 10, seed=1)
    shown, _ = rollout(make_env("distracted/walker-walk", render=render), 10, seed=1)
    mask = background_mask(clean)
    assert np.array_equal(shown[~mask], clean[~mask])
    assert (shown[mask] == shown[mask][:, :1]).all(), "gray film"
    assert (shown[mask] != clean[mask]).any(-1).mean() > 0.9
    if render == "fast":
        assert np.array_equal(clean, rollout(make_env("dmc/walker-walk"), 10, seed=1)[0])


@pytest.mark.parametrize(
    "task, fraction",
    [("walker-walk", 0.536), ("cheetah-run", 0.835), ("hopper-stand", 0.891), ("cartpole-swingup", 0.969)],
)
def test_background_is_as_large_as_in_the_authors_assets(task, fraction):
    frames, _ = rollout(make_env(f"distracted/{task}", split="clean"), 40)
    assert background_mask(frames).mean() == pytest.approx(fraction, abs=0.05)


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


def test_film_runs_two_frames_a_step_and_loops():
    env = Distracted(DMC("cartpole", "swingup"), counting_clips(7))
    frames, _ = rollout(env, 20, seed=0)
    tones = np.array([tone(frame) for frame in frames])
    assert np.array_equal(tones, (tones[0] + 2 * np.arange(21)) % 7)


def test_each_episode_draws_a_film_and_a_position():
    env = Distracted(DMC("cartpole", "swingup"), counting_clips(50, 50))
    starts = [tone(env.reset(seed=0 if episode == 0 else None)[0]) for episode in range(30)]
    assert {start // 100 for start in starts} == {0, 1}
    assert len({start % 100 for start in starts}) > 10


def test_official_film_is_never_rewound():
    env = Distracted(DMC("cartpole", "swingup"), counting_clips(200), rewind=False)
    start = tone(env.reset(seed=0)[0])
    for episode in range(3):
        for _ in range(4):
            frame = env.step(np.zeros(1))[0]
        assert tone(frame) == (start + 8 * (episode + 1) + episode) % 200
        assert tone(env.reset()[0]) == (start + 9 * (episode + 1)) % 200


def test_official_protocol_shows_training_films_in_the_test_split():
    train, test = (rollout(make_env("distracted/cartpole-swingup", split=split, protocol="official"), 5, seed=2)[0]
                   for split in ("train", "test"))  # fmt: skip
    assert np.array_equal(train, test)
    assert not np.array_equal(*(rollout(make_env("distracted/cartpole-swingup", split=split), 5, seed=2)[0]
                                for split in ("train", "test")))  # fmt: skip


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


def test_scoreboard_shows_the_return():
    clips = counting_clips(200)
    plain = Distracted(DMC("walker", "stand"), clips)
    board = Scoreboard(Distracted(DMC("walker", "stand"), clips))
    frames, _ = rollout(plain, 10, seed=0)
    shown, rewards = rollout(board, 10, seed=0)
    for t, score in enumerate(np.cumsum([0, *rewards])):
        text = draw(f"{score:.1f}")
        height, width = text.shape
        assert height <= 14 and width <= 64
        assert (shown[t, :height, :width] == text[..., None]).all()
        shown[t, :height, :width] = frames[t, :height, :width]
    assert np.array_equal(shown, frames)
    assert draw("1000.0").shape[1] <= 64
    assert len({draw(digit).tobytes() for digit in "0123456789"}) == 10


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
