"""One state in two looks, for calibrating an encoder to a new one."""

import gymnasium
import numpy as np

from undistracted.envs import make_env
from undistracted.errors import UserError


class PairedEnv(gymnasium.Env):
    """Pictures of six channels: how `source` shows a state, and how `target` shows the same state.

    Both run, seeded alike and with the same actions, so their states are the same wherever the simulator is
    deterministic; whether they are is seen by their rewards and ends. Rewards are the source's.
    """

    def __init__(self, source: gymnasium.Env, target: gymnasium.Env):
        self.source, self.target = source, target
        if source.action_space != target.action_space:
            raise UserError(
                "the two looks take different actions; pair looks of one task, such as dmc/walker-walk and "
                "distracted/walker-walk"
            )
        self.action_space = source.action_space
        height, width, channels = source.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, 2 * channels), np.uint8)
        self.metadata = source.metadata

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        looks = [env.reset(seed=seed, options=options)[0] for env in (self.source, self.target)]
        return np.concatenate(looks, -1), {}

    def step(self, action):
        ours, theirs = (env.step(action) for env in (self.source, self.target))
        if ours[1:4] != theirs[1:4]:
            raise UserError(
                f"the two looks are not of one state: their rewards or ends differ ({ours[1:4]} and {theirs[1:4]}); "
                "pair looks of one task, give pairs recorded elsewhere by --pairs FILE.npz, or do without any by "
                "--calibration 0 --held-out 0"
            )
        return np.concatenate([ours[0], theirs[0]], -1), *ours[1:]

    def close(self):
        self.source.close()
        self.target.close()


def make_pair(source: dict, target: dict) -> PairedEnv:
    """Of two environments, each given as the keyword arguments of `make_env`."""
    return PairedEnv(make_env(**source), make_env(**target))
