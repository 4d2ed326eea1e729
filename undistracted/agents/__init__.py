"""The agents by name: the only place where a method's name is looked up.

An agent is what `LatentAgent` shows: `init(key)` makes a state that has a `policy`; `initial_carry` and `act` are the
policy's; `sample(replay, key)` draws what one `update(state, batch, key)` learns from. All are pure, and for one seed.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from undistracted.agents.latent import LatentAgent
from undistracted.agents.repo import RePo


class Entry(NamedTuple):
    about: str
    make: Callable  # (config, action size) -> agent
    presets: dict[str, dict] = {}  # settings by preset where the method's differ from `presets.py`


AGENTS = {
    "repo": Entry(
        "RePo: predict rewards and latents, squeeze out the rest by a KL bottleneck; no reconstruction",
        partial(LatentAgent, RePo),
    ),
}


def make_agent(config, action_size: int):
    return AGENTS[config.agent].make(config, action_size)
