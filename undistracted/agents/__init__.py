"""The agents by name: the only place where a method's name is looked up."""

from undistracted.agents.latent import LatentAgent
from undistracted.agents.repo import RePo

WORLD_MODELS = {"repo": RePo}
AGENTS = {"repo": "RePo: predict rewards and latents, squeeze out the rest by a KL bottleneck; no reconstruction"}


def make_agent(config, action_size: int) -> LatentAgent:
    return LatentAgent(WORLD_MODELS[config.agent], config, action_size)
