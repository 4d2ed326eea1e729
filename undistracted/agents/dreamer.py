"""Dreamer: latents from which the picture, the reward and their own future can be told.

The bound that is maximised, per agent step and in nats; its negative is what `losses` holds:

    log q(o_t | z_t)  +  log q(r_t | z_t)  -  max(KL(p || q_z), free nats)

p is the posterior, q_z the prior. Everything in the picture counts alike, a film behind the robot too.
`docs/agents/dreamer.md` has the metrics and every departure from the source.
"""

import equinox as eqx
import jax

from undistracted.agents.model import WorldModel, free, make_decoder, make_encoder, make_reward, make_rssm, reward_nll
from undistracted.data import Batch
from undistracted.decoder import Decoder, image_nll, to_picture
from undistracted.dists import kl
from undistracted.encoder import Encoder
from undistracted.nets import Scalar
from undistracted.rssm import RSSM


class Dreamer(WorldModel):
    encoder: Encoder  # o_t -> x_t
    rssm: RSSM  # p, q_z   posterior and prior over z_t
    reward: Scalar  # q(r_t | z_t)
    decoder: Decoder  # q(o_t | z_t)
    free_nats: float = eqx.field(static=True)
    of_mean: bool = eqx.field(static=True)
    image_std: float = eqx.field(static=True)

    def __init__(self, config, action_size: int, key):
        k, features = jax.random.split(key, 4), config.belief + config.state
        self.encoder = make_encoder(config, k[0])
        self.rssm = make_rssm(config, action_size, self.encoder.size, k[1])
        self.reward = make_reward(config, features, k[2])
        self.decoder = make_decoder(config, features, self.encoder.size, k[3])
        self.free_nats, self.of_mean, self.image_std = config.free_nats, config.free_nats_of_mean, config.image_std

    def losses(self, batch: Batch, key):
        z, posterior, prior = self.rssm.observe(self.encoder(batch.obs), batch.action, batch.first, key)
        divergence = kl(posterior, prior)
        losses = {
            "image": image_nll(self.decoder(z.features), batch.obs, self.image_std),
            "reward": reward_nll(self.reward(z.features), batch),
            "kl": free(divergence, self.free_nats, self.of_mean),
        }
        metrics = {
            "kl": divergence.mean(),
            "posterior_std": posterior.std.mean(),
            "prior_std": prior.std.mean(),
        }
        return z, losses, metrics

    def pictures(self, batch: Batch, key):
        """The picture as it is seen, and as the latents tell it."""
        z, _, _ = self.rssm.observe(self.encoder(batch.obs), batch.action, batch.first, key)
        return {"seen": batch.obs[:, 0], "decoded": to_picture(self.decoder(z.features)[:, 0])}
