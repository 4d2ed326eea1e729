"""Gymnasium environments as tasks: their pictures, their actions, and why some cannot be used."""

import sys

import gymnasium
import numpy as np
import pytest
from toy import check_api

from undistracted.envs import check_task, make_env
from undistracted.envs.gym import find_spec
from undistracted.errors import UserError


class Picture(gymnasium.Env):
    """Sees a flat picture of its last action, which must lie in [0, 4]; succeeds above 3."""

    observation_space = gymnasium.spaces.Box(0, 255, (96, 80, 3), np.uint8)
    action_space = gymnasium.spaces.Box(0.0, 4.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full((96, 80, 3), self.np_random.integers(256), np.uint8), {}

    def step(self, action):
        picture = np.full((96, 80, 3), round(10 * float(action[0])), np.uint8)
        return picture, float(action[0]), False, False, {"success": action[0] > 3, "more": 1}


class Rendered(Picture):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def render(self):
        return np.repeat(np.uint8([0, 200]), 64)[:, None, None] * np.ones((1, 100, 3), np.uint8)


class NeedsPackage(Rendered):
    def render(self):
        raise gymnasium.error.DependencyNotInstalled("rarepackage is not installed")


class Blind(Rendered):
    metadata = {"render_modes": []}


class Unbounded(Picture):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


for test_class in (Picture, Rendered, NeedsPackage, Blind, Unbounded):
    gymnasium.register(f"Test{test_class.__name__}-v0", test_class)


def test_follows_the_gymnasium_api():
    check_api(make_env("gym/TestPicture-v0"))


@pytest.mark.parametrize(
    "task, words",
    [
        ("gym/<EnvId>", "no Gymnasium environment"),
        ("gym/TestPictur-v0", "did you mean 'TestPicture-v0'"),
        ("gym/nosuchmodule:Env-v0", "cannot import 'nosuchmodule'"),
    ],
)
def test_unknown_environments(task, words):
    for call in (check_task, make_env):
        with pytest.raises(UserError, match=words):
            call(task)


@pytest.mark.parametrize(
    "env_id, words",
    [("CartPole-v1", "Discrete"), ("TestUnbounded-v0", "without bounds"), ("TestBlind-v0", "no pixels"),
     ("TestNeedsPackage-v0", "rarepackage")],
)  # fmt: skip
def test_environments_that_cannot_be_used(env_id, words):
    with pytest.raises(UserError, match=words):
        make_env(f"gym/{env_id}")


def test_picture_is_shrunk_and_actions_are_scaled():
    env = make_env("gym/TestPicture-v0", action_repeat=2)
    env.reset()
    for action, inner in ((-1, 0), (0, 2), (0.9, 3.8), (7, 4)):
        frame, reward, _, _, info = env.step(np.float32([action]))
        assert (frame == round(10 * inner)).all()
        assert reward == pytest.approx(2 * inner)
        assert info == {"success": inner > 3}
    env.reset()
    ends = [env.step(np.zeros(1))[3] for _ in range(500)]
    assert ends == [False] * 499 + [True], "a thousand frames where the environment has no limit"


def test_rendering_is_the_observation_where_there_is_no_picture():
    frame, _ = make_env("gym/TestRendered-v0").reset()
    assert (frame[:31] == 0).all() and (frame[33:] == 200).all()


@pytest.mark.parametrize(
    "text, words",
    [("\nx = 1 / 0\n", "ZeroDivisionError: division by zero \\(slip.py, line 2\\)"), ("def f(:", "line 1")],
)
def test_a_mistake_in_ones_own_module_is_told_with_its_place(tmp_path, monkeypatch, text, words):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slip.py").write_text(text)
    with pytest.raises(UserError, match=f"cannot import 'slip' for task 'gym/slip:Own-v0': .*{words}"):
        find_spec("slip:Own-v0")


def test_a_module_in_the_working_directory_need_not_be_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_robot.py").write_text("import gymnasium\ngymnasium.register('Own-v0', 'toy:Steady')\n")
    with pytest.raises(UserError, match="cannot import 'own_robot'"):
        find_spec("own_robot:Own-v0")
    monkeypatch.chdir(tmp_path)
    assert find_spec("own_robot:Own-v0").id == "Own-v0"
