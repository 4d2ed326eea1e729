"""What `LatentAgent` asks of a world model, and the parts that world models share, in the sizes of the settings."""

import abc

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from undistracted import parts
from undistracted.data import Batch
from undistracted.decoder import Decoder, native_deconv, patch_deconv
from undistracted.dists import unit_nll
from undistracted.encoder import NATIVE, PATCHES, Encoder
from undistracted.kernels import filter as kernels
from undistracted.kernels import launch
from undistracted.nets import Scalar
from undistracted.optim import adam
from undistracted.rssm import RSSM, filter_sequences, fresh_start, official_start


class WorldModel(eqx.Module):
    """A method: what is in its latents, and by which losses it comes to be there."""

    encoder: eqx.AbstractVar[eqx.Module]  # o_t -> x_t, as acting needs it
    rssm: eqx.AbstractVar[eqx.Module]  # filters and imagines
    reward: eqx.AbstractVar[eqx.Module]  # of imagined latents

    @abc.abstractmethod
    def losses(self, batch: Batch, key) -> tuple:
        """Latents (T, B) to imagine from, the terms of the objective, each (T, B), and what to watch."""

    @staticmethod
    def optimiser(config) -> optax.GradientTransformation:
        """Of all parameters together."""
        return adam(config.model_lr, config.clip, config.adam_eps)

    def prepare(self, moments, batch: Batch, key) -> tuple:
        """The model and its optimiser's state after what a method does before each of its steps: here, nothing."""
        return self, moments

    def pictures(self, batch: Batch, key) -> dict:
        """What the model makes of one sequence (T, 1), as films by name, uint8 (T, 64, 64, 3): here, nothing."""
        return {}


def make_encoder(config, key) -> Encoder:
    form = NATIVE if config.native_conv else PATCHES
    return Encoder(config.channels, key, config.precision, config.shrink, form)


def make_rssm(config, action_size: int, encoding: int, key) -> RSSM:
    sizes = dict(belief=config.belief, state=config.state, hidden=config.hidden)
    options = dict(unroll=config.unroll, merge=config.merge_gates, boundary=boundary_of(config))
    return RSSM(action_size, encoding, **sizes, key=key, dtype=config.precision, filter=filter_of(config), **options)


def filter_of(config):
    """How sequences are filtered: step by step, or by kernels of our own where they run."""
    sizes = kernels.Sizes(config.belief, config.state, config.hidden, config.length, config.batch)
    by_kernels = launch.wanted(config) and kernels.fits(sizes)
    return kernels.filter_sequences if by_kernels else filter_sequences


def boundary_of(config):
    """What happens to belief and action where an episode starts."""
    return official_start if config.official_boundary else fresh_start


def make_decoder(config, features: int, encoding: int, key, **options) -> Decoder:
    """As wide at its start as the encoder at its end."""
    options |= dict(shrink=config.shrink, conv=native_deconv if config.native_conv else patch_deconv)
    return Decoder(features, encoding, config.channels, key, config.precision, **options)


def make_reward(config, features: int, key) -> Scalar:
    return Scalar(features, config.width or config.hidden, config.reward_depth, key, config.precision)


def free(kl: Float[Array, "T B"], nats: float, of_mean: bool) -> Float[Array, "T B"]:
    """max(KL, nats): below them the model is not pushed; at each row, or where the mean of all rows is."""
    return jnp.maximum(jnp.broadcast_to(parts.mean_of_rows(kl), kl.shape) if of_mean else kl, nats)


def reward_nll(predicted, batch: Batch) -> Float[Array, "T B"]:
    """Of a unit Gaussian; first rows have no reward."""
    return jnp.where(batch.first, 0.0, unit_nll(predicted, batch.reward))
