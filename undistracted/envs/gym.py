"""Any registered Gymnasium environment with continuous actions, as pictures."""

import importlib
import os
import sys
import traceback

import gymnasium
import numpy as np

from undistracted.errors import UserError, did_you_mean

SIZE = 64
MAX_FRAMES = 1000  # of an episode, for environments that set no limit


class GymPixels(gymnasium.Env):
    """The environment's own picture if it observes one, else its rendering, scaled to 64x64."""

    render_mode = "rgb_array"

    def __init__(self, env_id: str, *, action_repeat: int = 1):
        self.action_repeat = action_repeat
        self.inner = build(env_id)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": self.inner.metadata.get("render_fps", 30)}
        self.sees = is_picture(self.inner.observation_space)
        space = self.inner.action_space
        self.center = (space.high.astype(np.float64) + space.low) / 2
        self.half = (space.high.astype(np.float64) - space.low) / 2
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (int(np.prod(space.shape)),), np.float32)
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        observation, _ = self.inner.reset(seed=seed, options=options)
        return self._look(observation), {}

    def step(self, action):
        action = self.center + self.half * np.clip(action, -1, 1).reshape(self.center.shape)
        total = 0.0
        for _ in range(self.action_repeat):
            step = self.inner.step(action.astype(self.inner.action_space.dtype))
            observation, reward, terminated, truncated, info = step
            total += float(reward)
            if terminated or truncated:
                break
        success = info.get("success", info.get("is_success"))
        info = {} if success is None else {"success": bool(success)}
        return self._look(observation), total, bool(terminated), bool(truncated), info

    def render(self):
        return self.frame

    def close(self):
        self.inner.close()

    def _look(self, observation):
        self.frame = shrink(observation if self.sees else self.inner.render())
        return self.frame


def find_spec(env_id: str):
    """The registered environment of that id, `EnvId` or `module:EnvId`."""
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            if os.getcwd() not in sys.path:  # a file of one's own need not be installed
                sys.path.append(os.getcwd())
            imported(module, env_id)
        if name not in gymnasium.registry:  # `Ant` stands for its newest version
            return gymnasium.spec(f"{name}-v{newest(name)}")
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise UserError(f"no Gymnasium environment '{env_id}'{did_you_mean(name, gymnasium.registry)}") from error


def imported(module: str, env_id: str):
    try:
        return importlib.import_module(module)
    except Exception as error:  # a mistake in the user's own file is told as one, with its place
        what = f"{error}"
        if not isinstance(error, ImportError | SyntaxError):  # whose texts have it
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}, line {place.lineno})"
        raise UserError(f"cannot import '{module}' for task 'gym/{env_id}': {what}") from error


def newest(name: str):
    from gymnasium.envs.registration import find_highest_version, parse_env_id

    namespace, name, _ = parse_env_id(name)
    return find_highest_version(namespace, name)


def build(env_id: str) -> gymnasium.Env:
    """The environment, ready to give pictures, or a sentence on why it cannot."""
    spec = find_spec(env_id)
    try:
        env = gymnasium.make(spec, disable_env_checker=True)
        check_actions(env_id, env.action_space)
        if not is_picture(env.observation_space):
            if "rgb_array" not in env.metadata.get("render_modes", ()):
                raise UserError(
                    f"'gym/{env_id}' shows no pixels: it has neither picture observations nor rgb_array rendering"
                )
            env.close()
            env = gymnasium.make(spec, render_mode="rgb_array", disable_env_checker=True)
            env.reset(seed=0)
            env.render()  # packages that only rendering needs are missed here, and not in the middle of training
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise UserError(f"'gym/{env_id}' needs a package that is missing: {error}") from error
    if spec.max_episode_steps is None:
        env = gymnasium.wrappers.TimeLimit(env, MAX_FRAMES)
    return env


def check_actions(env_id: str, space: gymnasium.Space) -> None:
    if not isinstance(space, gymnasium.spaces.Box):
        raise UserError(f"'gym/{env_id}' has {type(space).__name__} actions: only continuous ones (Box) can be learned")
    if not space.is_bounded():
        raise UserError(f"'gym/{env_id}' has actions without bounds: wrap it so that its action space is finite")


def is_picture(space: gymnasium.Space) -> bool:
    return isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and space.shape[2:] == (3,)


def shrink(picture: np.ndarray) -> np.ndarray:
    """Scale an (H, W, 3) picture to 64x64, averaging over the pixels that become one."""
    import av
    from av.video.reformatter import Interpolation

    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")
    return frame.reformat(SIZE, SIZE, interpolation=Interpolation.AREA).to_ndarray()
