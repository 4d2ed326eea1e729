"""Denoised MDP: latents in two slots, x for what the agent controls and y for what it does not.

Both slots tell the picture and the reward; only x hears the actions, y's prior runs on by itself; and a nat of y costs
less than one of x. So whatever can be foretold without the actions is cheaper to keep in y. Minimised, per agent step:

    -log q(o_t | x_t, y_t)  -  log q(r_t | R_x(x_t) + R_y(y_t))  +  max(KL_x, free nats)  +  beta KL_y

Behaviour is learned from x and R_x alone. This is the method's variant without a third slot.
`docs/agents/denoised-mdp.md` has the metrics and every departure from the source.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from undistracted import parts
from undistracted.agents.model import WorldModel, boundary_of, free, make_decoder, make_encoder, make_reward, reward_nll
from undistracted.data import Batch
from undistracted.decoder import Decoder, image_nll, to_picture
from undistracted.dists import Normal, kl
from undistracted.encoder import Encoder
from undistracted.gru import GRU
from undistracted.nets import Linear, Scalar
from undistracted.rssm import Latent, Transition, filter_row, filter_rows


class DenoisedMDP(WorldModel):
    encoder: "Embedding"  # o_t -> embedding
    rssm: "Slots"  # x_t, y_t
    reward: Scalar  # R_x
    reward_y: Scalar  # R_y
    decoder: Decoder  # q(o_t | x_t, y_t)
    beta: float = eqx.field(static=True)
    free_nats: float = eqx.field(static=True)
    of_mean: bool = eqx.field(static=True)
    image_std: float = eqx.field(static=True)

    def __init__(self, config, action_size: int, key):
        k = jax.random.split(key, 5)
        self.encoder = Embedding(config, k[0])
        self.rssm = Slots(config, action_size, self.encoder.size, k[1])
        x, y = sum(self.rssm.x.sizes), sum(self.rssm.y.sizes)
        self.reward, self.reward_y = make_reward(config, x, k[2]), make_reward(config, y, k[4])
        self.decoder = make_decoder(config, x + y, self.encoder.convolutions.size, k[3], relu=config.denoised.relu)
        self.beta, self.image_std = config.denoised.beta, config.image_std
        self.free_nats, self.of_mean = config.free_nats, config.free_nats_of_mean

    def losses(self, batch: Batch, key):
        z, posterior, prior = self.rssm.observe(self.encoder(batch.obs), batch.action, batch.first, key)
        x, y = self.rssm.slots(z)
        kl_x, kl_y = map(kl, self.rssm.slots(posterior), self.rssm.slots(prior))
        reward_x = self.reward(x.features)
        reward_y = self.reward_y(y.features) if y.features.shape[-1] else jnp.zeros_like(reward_x)
        losses = {
            "image": image_nll(self.decoder(z.features), batch.obs, self.image_std),
            "reward": reward_nll(reward_x + reward_y, batch),
            "kl": free(kl_x, self.free_nats, self.of_mean),
            "kl_y": self.beta * kl_y,
        }
        spread_x, spread_y = (variance(reward) + 1e-8 for reward in (reward_x, reward_y))
        metrics = {
            "kl": kl_x.mean(),
            "kl_y": kl_y.mean(),
            "posterior_std": posterior.std.mean(),
            "prior_std": prior.std.mean(),
            "reward_x": reward_x.mean(),
            "reward_y": reward_y.mean(),
            "reward_x_share": spread_x / (spread_x + spread_y),
            "reward_y_share": spread_y / (spread_x + spread_y),
        }
        return x, losses, metrics

    def pictures(self, batch: Batch, key):
        """The picture as it is seen, as both slots tell it, and with one of them held as it was at the start: with y
        held, the film behind the robot should stand still, and with x held, the robot."""
        z, _, _ = self.rssm.observe(self.encoder(batch.obs), batch.action, batch.first, key)
        held = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), z)
        (x, y), (held_x, held_y) = self.rssm.slots(z), self.rssm.slots(held)
        films = {"decoded": z, "y held": join(x, held_y), "x held": join(held_x, y)}
        decoded = {name: to_picture(self.decoder(z.features)[:, 0]) for name, z in films.items()}
        return {"seen": batch.obs[:, 0]} | decoded


class Embedding(eqx.Module):
    """The shared convolutions, and the method's own linear layer behind them where the settings ask for it."""

    convolutions: Encoder
    linear: Linear | None

    def __init__(self, config, key):
        k1, k2 = jax.random.split(key)
        self.convolutions = make_encoder(config, k1)
        size = self.convolutions.size
        self.linear = Linear(size, size, k2, config.precision) if config.denoised.linear else None

    @property
    def size(self) -> int:
        return self.convolutions.size

    def __call__(self, obs):
        x = self.convolutions(obs)
        return self.linear(x) if self.linear else x


class Slots(eqx.Module):
    """Two priors, of x with actions and of y without, and one posterior of both, which sees both beliefs.

    A joint latent holds the beliefs of x and y as one, and their states as one. Filtering takes both slots' products
    at once, by block-diagonal weights: as many steps of the device as for a single slot.
    """

    x: Transition
    y: Transition
    posterior_hidden: Linear  # beliefs, embedding -> hidden
    posterior_out: Linear
    boundary: Callable = eqx.field(static=True)

    def __init__(self, config, action_size: int, encoding: int, key):
        c, own, k = config, config.denoised, jax.random.split(key, 4)
        y_state = c.state if own.y_state is None else own.y_state
        y_belief = c.belief if own.y_belief is None else own.y_belief
        y_belief, y_hidden = (y_belief, c.hidden) if y_state else (0, 0)
        options = dict(dtype=c.precision, unroll=c.unroll, merge=c.merge_gates)
        self.x = Transition(action_size, belief=c.belief, state=c.state, hidden=c.hidden, key=k[0], **options)
        self.y = Transition(0, belief=y_belief, state=y_state, hidden=y_hidden, key=k[1], **options)
        self.posterior_hidden = Linear(c.belief + y_belief + encoding, c.hidden + y_hidden, k[2], c.precision)
        self.posterior_out = Linear(c.hidden + y_hidden, 2 * (c.state + y_state), k[3], c.precision)
        self.boundary = boundary_of(c)

    def initial(self, *rows: int) -> Latent:
        return join(*(Latent(*(jnp.zeros((*rows, size)) for size in slot.sizes)) for slot in (self.x, self.y)))

    def slots(self, joint):
        """x's and y's part of a joint latent, or of a distribution of its state."""
        sizes = self.x.sizes if isinstance(joint, Latent) else (self.x.sizes[1],) * 2
        pairs = [jnp.split(leaf, [size], -1) for leaf, size in zip(joint, sizes, strict=True)]
        return tuple(type(joint)(*leaves) for leaves in zip(*pairs, strict=True))

    def task(self, latent: Latent) -> Latent:
        """What policy and imagination use of a filtered latent: x."""
        return self.slots(latent)[0]

    def imagine(self, start: Latent, policy, rows, key) -> tuple:
        return self.x.imagine(start, policy, rows, key)

    def prior(self, belief) -> Normal:
        in_x, in_y = jnp.split(belief, [self.x.sizes[0]], -1)
        return join(self.x.prior(in_x), self.y.prior(in_y))

    def products(self, action, embedding) -> tuple[dict, dict]:
        """As `RSSM.products`; the action is added to x's inputs only."""
        state, beliefs = self.x.sizes[1], self.x.sizes[0] + self.y.sizes[0]
        x, y, hidden, out = self.x.inputs, self.y.inputs, self.posterior_hidden, self.posterior_out
        gru, gru_bias = joint_gru(self.x.gru, self.y.gru)
        weights = {
            "inputs": diagonal(x.weight[:state], y.weight),
            "gru": gru,
            "hidden": hidden.weight[:beliefs],
            "out": out.weight,
        }

        def every_row(bias):
            return jnp.broadcast_to(bias, (*action.shape[:-1], bias.size))

        offsets = {
            "inputs": jnp.concatenate([x.product(action, slice(state, None)) + x.bias, every_row(y.bias)], -1),
            "gru": every_row(gru_bias),
            "hidden": hidden.product(embedding, slice(beliefs, None)) + hidden.bias,
            "out": every_row(out.bias),
        }
        return weights, offsets

    def step(self, latent: Latent, action, embedding, first, noise=None) -> Latent:
        """As `RSSM.step`, of a joint latent."""
        return filter_row(self.products, self.x.inputs.dtype, latent, action, embedding, first, noise)

    def observe(self, embedding, action, first, key) -> tuple[Latent, Normal, Normal]:
        """As `RSSM.observe`, of joint latents."""
        action, forget = self.boundary(action, first)
        weights, offsets = self.products(action, embedding)
        options, start = (self.x.unroll, self.x.inputs.dtype), self.initial(first.shape[1])
        latent, posterior = filter_rows(*options, weights, offsets, start, first, forget, key)
        return latent, posterior, self.prior(latent.belief)


def variance(x):
    """Over the rows of all parts."""
    return parts.mean_of_rows((x - parts.mean_of_rows(x)) ** 2)


def join(x, y):
    """Two slots' latents, or distributions, as one."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], -1), x, y)


def diagonal(x, y):
    """The weight that takes x's inputs to x's outputs and y's to y's, for weights (inputs, ..., outputs)."""
    before, after = ([(0, 0)] * (x.ndim - 1) + [pad] for pad in ((0, y.shape[-1]), (x.shape[-1], 0)))
    return jnp.concatenate([jnp.pad(x, before), jnp.pad(y, after)])


def joint_gru(x: GRU, y: GRU):
    """Both cells' merged weights and biases as those of one cell, whose every gate has x's units first."""
    (wx, bx), (wy, by) = x.merged(), y.merged()
    wx, wy = (w.reshape(len(w), 4, w.shape[1] // 4) for w in (wx, wy))
    nx, ny = len(x.inputs.weight), len(y.inputs.weight)
    weight = jnp.concatenate([diagonal(wx[:nx], wy[:ny]), diagonal(wx[nx:], wy[ny:])])
    bias = jnp.concatenate([b.reshape(4, b.size // 4) for b in (bx, by)], 1)
    return weight.reshape(len(weight), -1), bias.reshape(-1)
