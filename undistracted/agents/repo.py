"""RePo: latents that predict the reward and their own future, and as little else as possible.

The paper's Eq. 4.4, as it is minimised here, per agent step and in nats:

    min over p, q_r, q_z, h, max over beta:   -log q_r(r_t | z_t)  +  beta (KL(p || q_z) - epsilon)

p is the posterior, q_z the prior. There is no decoder: its absence is the method. `docs/agents/repo.md` has the
metrics and every departure from the paper.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float

from undistracted.agents.model import WorldModel, make_encoder, make_reward, make_rssm, reward_nll
from undistracted.data import Batch
from undistracted.encoder import Encoder
from undistracted.foresight import foretold_nll
from undistracted.nets import Scalar
from undistracted.optim import adam
from undistracted.rssm import RSSM, balanced_kl


class RePo(WorldModel):
    encoder: Encoder  # h      o_t -> x_t
    rssm: RSSM  # p, q_z   posterior and prior over z_t
    reward: Scalar  # q_r    z_t -> r_t
    log_beta: Float[Array, ""]  # dual variable of the bottleneck
    epsilon: float = eqx.field(static=True)
    alpha: float = eqx.field(static=True)
    foresight: int = eqx.field(static=True)

    def __init__(self, config, action_size: int, key):
        k = jax.random.split(key, 3)
        self.encoder = make_encoder(config, k[0])
        self.rssm = make_rssm(config, action_size, self.encoder.size, k[1])
        self.reward = make_reward(config, config.belief + config.state, k[2])
        self.log_beta = jnp.log(jnp.float32(config.beta0))
        self.epsilon = config.epsilon
        self.alpha = config.r / (config.r + 1)
        self.foresight = config.foresight

    def losses(self, batch: Batch, key):
        """Latents z (T, B), the terms of the objective, each (T, B), and what to watch."""
        x = self.encoder(batch.obs)
        z, posterior, prior = self.rssm.observe(x, batch.action, batch.first, key)
        kl = balanced_kl(posterior, prior, self.alpha)
        violation = kl - self.epsilon  # Eq. 4.3
        losses = {
            "reward": reward_nll(self.reward(z.features), batch),  # Eq. 4.2
            "bottleneck": jnp.exp(sg(self.log_beta)) * violation,
            "dual": -self.log_beta * sg(violation),  # log beta climbs while KL exceeds epsilon
        }
        if self.foresight:
            losses["foresight"] = foretold_nll(self, z, batch, self.foresight, jax.random.fold_in(key, 1))
        metrics = {
            "kl": kl.mean(),
            "beta": jnp.exp(self.log_beta),
            "posterior_std": posterior.std.mean(),
            "prior_std": prior.std.mean(),
        }
        return z, losses, metrics

    @staticmethod
    def optimiser(config) -> optax.GradientTransformation:
        """Adam with clipping for the model; the dual variable climbs by an Adam of its own, unclipped."""

        def label(model):
            return eqx.tree_at(lambda m: m.log_beta, jax.tree.map(lambda _: "model", model), "dual")

        model = adam(config.model_lr, config.clip, config.adam_eps)
        return optax.partition({"model": model, "dual": adam(config.beta_lr, eps=config.adam_eps)}, label)
