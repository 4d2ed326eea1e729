"""The agents by name: the only place where a method's name is looked up.

An agent is what `LatentAgent` shows: `init(key)` makes a state that has a `policy`; `initial_carry` and `act` are the
policy's; `sample(replay, key)` draws what one `update(state, batch, key)` learns from. All are pure, and for one seed.
An agent that draws by priority has a `window`, the rows (before, after) a drawn one, and its `update` also returns the
errors that become the new priorities. One whose batches may be cut into parts (`parts.py`) has `parts(most)`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from undistracted.agents import settings
from undistracted.agents.dbc import DBC
from undistracted.agents.deepmdp import DeepMDP
from undistracted.agents.denoised_mdp import DenoisedMDP
from undistracted.agents.dreamer import Dreamer
from undistracted.agents.latent import LatentAgent
from undistracted.agents.repo import RePo
from undistracted.agents.sac import PRESETS as SAC_PRESETS
from undistracted.agents.sac import SAC
from undistracted.agents.tdmpc import DOMAINS as TDMPC_DOMAINS
from undistracted.agents.tdmpc import PRESETS as TDMPC_PRESETS
from undistracted.agents.tdmpc import TDMPC
from undistracted.agents.tia import TIA


class Entry(NamedTuple):
    about: str
    make: Callable  # (config, action size) -> agent
    presets: dict[str, dict] = {}  # settings by preset where the method's differ from `presets.py`
    domains: dict[str, dict] = {}  # of the preset `original`, where it was published with some by domain


# Dreamer's published settings, which TIA and Denoised MDP took over; their runs are of as many steps as RePo's.
DREAMER = dict(
    width=400,
    reward_depth=2,
    initial="glorot",
    actor_std=5.0,
    actor_min_std=1e-4,
    free_nats_of_mean=True,
    image_std=2.0,
    model_lr=6e-4,
    adam_eps=1e-7,
    entropy_bonus=0.0,
    discount_weights=True,
    exploration=0.3,
    prefill=2_500,
    warm_up_updates=100,
)

# The weights of TIA's and Denoised MDP's terms are published for pixels in [-0.5, 0.5].
OWN_PIXELS = dict.fromkeys(("paper", "small", "debug"), dict(image_std=2.0))


def with_original(presets: dict[str, dict], **changes) -> dict[str, dict]:
    """Presets of a family, of which one method was published with other settings."""
    return presets | {"original": presets["original"] | changes}


AGENTS = {
    "repo": Entry(
        "RePo: predict rewards and latents, squeeze out the rest by a KL bottleneck; no reconstruction",
        partial(LatentAgent, RePo),
        # Twice the model's rate, a beta that begins higher (tenfold for a walker) and rises faster, and moved pictures.
        {"tuned": dict(model_lr=6e-4, beta0=1e-4, beta_lr=3e-4, shift=4)},
    ),
    "dreamer": Entry(
        "Dreamer: reconstruct the whole picture and predict the reward from the latents",
        partial(LatentAgent, Dreamer),
        {"original": DREAMER | dict(steps=2_500_000, replay_size=2_500_000)},
    ),
    "tia": Entry(
        "TIA: two streams reconstruct the picture together, one of which must not know the reward",
        partial(LatentAgent, TIA),
        OWN_PIXELS | {"original": DREAMER | dict(channels=(26, 52, 104, 208))},
    ),
    "denoised-mdp": Entry(
        "Denoised MDP: latents in two slots, one that hears the actions and one that does not",
        partial(LatentAgent, DenoisedMDP),
        OWN_PIXELS
        | {
            "original": DREAMER
            | dict(belief=120, state=20, hidden=120, initial="uniform", free_nats_of_mean=False, warm_up_updates=0)
            | dict(denoised=settings.Denoised(linear=True, relu=True))
        },
    ),
    "tdmpc": Entry(
        "TD-MPC: plans by MPPI in a latent model that is learned from rewards and values",
        TDMPC,
        TDMPC_PRESETS,
        TDMPC_DOMAINS,
    ),
    "deepmdp": Entry(
        "DeepMDP: soft actor-critic whose latents also predict the reward and the next latent",
        partial(SAC, DeepMDP),
        SAC_PRESETS,
    ),
    "dbc": Entry(
        "DBC: soft actor-critic whose latents are as far apart as their rewards and futures (bisimulation)",
        partial(SAC, DBC),
        with_original(SAC_PRESETS, batch=512, dbc=settings.DBC(transition="ensemble")),
    ),
}


def make_agent(config, action_size: int):
    return AGENTS[config.agent].make(config, action_size)
