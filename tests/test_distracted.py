"""Distracted environments: what is seen behind the agent, and above it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from toy import rollout

from undistracted.envs import make_env
from undistracted.envs.distracted import Distracted, Scoreboard, background_mask, composite, draw
from undistracted.envs.dmc import DMC
from undistracted.envs.video import Clips


def counting_clips(*lengths):
    """Clip i, frame t is one flat tone: 100 i + t."""
    films = [np.full((n, 64, 64), 100 * i, np.uint8) + np.arange(n, dtype=np.uint8)[:, None, None]
             for i, n in enumerate(lengths)]  # fmt: skip
    return Clips(tuple(films), tuple(map(str, lengths)))


def tone(frame):
    """The film's tone: cartpole's top left pixel is always sky."""
    assert len(set(frame[0, 0])) == 1
    return int(frame[0, 0, 0])


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
