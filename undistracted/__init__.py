"""Visual reinforcement learning that is not thrown off by what does not matter: RePo and its world, as one package.

env = undistracted.make_env("distracted/walker-walk", split="test")
undistracted.train(undistracted.preset_config("distracted/walker-walk", "small"))
agent = undistracted.load("runs/walker-walk-repo-s0")
action, carry = agent.act(observation, carry)
"""

import importlib

__version__ = "0.1.0"

# Imported when asked for: environment processes need neither JAX nor the learner.
_HOMES = {
    "make_env": "undistracted.envs",
    "Config": "undistracted.config",
    "preset_config": "undistracted.presets",
    "train": "undistracted.training",
    "evaluate": "undistracted.evaluation",
    "EvaluateConfig": "undistracted.evaluation",
    "load": "undistracted.deploy",
}
__all__ = [*_HOMES, "__version__"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'undistracted' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
