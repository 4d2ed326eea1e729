"""TIA, Task Informed Abstractions: two streams of latents, z+ for the task and z- for its distractions.

Both tell the picture together, each pixel by the mask that they agree on. z+ predicts the reward; z- tells the picture
alone too, and must not be able to predict the reward: an adversary tries to, from z- as it is, before each step.

    task         -log q(o_t | z+, z-)  -  log q(r_t | z+)  +  KL+
    distractor   -log q(o_t | z+, z-)  -  alone log q(o_t | z-)  +  KL-  +  adversary log a(r_t | z-)

Each stream minimises its own line and the joint decoders minimise both, all by optimisers of their own. Behaviour is
learned from z+. `docs/agents/tia.md` has the metrics and every departure from the source.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.lax import stop_gradient as sg

from undistracted import parts
from undistracted.agents.model import WorldModel, free, make_decoder, make_encoder, make_reward, make_rssm, reward_nll
from undistracted.data import Batch
from undistracted.decoder import Decoder, image_nll, to_picture
from undistracted.dists import kl
from undistracted.encoder import Encoder
from undistracted.nets import Linear, Scalar
from undistracted.optim import adam, apply
from undistracted.rssm import RSSM


class TIA(WorldModel):
    encoder: Encoder  # of the task stream, as all that has no other name
    rssm: RSSM
    reward: Scalar
    distractor: "Distractor"
    joint: "Joint"  # q(o_t | z+, z-)
    adversary: Scalar  # a(r_t | z-)
    weights: tuple[float, float] = eqx.field(static=True)  # adversary, alone
    inner_steps: int = eqx.field(static=True)
    free_nats: float = eqx.field(static=True)
    of_mean: bool = eqx.field(static=True)
    image_std: float = eqx.field(static=True)
    rate: tuple = eqx.field(static=True)  # of the adversary's Adam

    def __init__(self, config, action_size: int, key):
        k, features = jax.random.split(key, 6), config.belief + config.state
        self.encoder = make_encoder(config, k[0])
        self.rssm = make_rssm(config, action_size, self.encoder.size, k[1])
        self.reward = make_reward(config, features, k[2])
        self.distractor = Distractor(config, action_size, k[3])
        self.joint = Joint(config, self.encoder.size, k[4])
        self.adversary = make_reward(config, features, k[5])
        self.weights, self.inner_steps = (config.tia.adversary, config.tia.alone), config.tia.inner_steps
        self.free_nats, self.of_mean, self.image_std = config.free_nats, config.free_nats_of_mean, config.image_std
        self.rate = adam_of(config)

    def observe(self, batch: Batch, key):
        """Latents, posteriors and priors of both streams."""
        keys = jax.random.split(key)
        return tuple(
            stream.rssm.observe(stream.encoder(batch.obs), batch.action, batch.first, k)
            for stream, k in zip((self, self.distractor), keys, strict=True)
        )

    def losses(self, batch: Batch, key):
        (task, posterior, prior), (distractor, posterior_, prior_) = self.observe(batch, key)
        picture, mask, _, _ = self.joint(task.features, distractor.features)
        alone = self.distractor.decoder(distractor.features)
        divergence, divergence_ = kl(posterior, prior), kl(posterior_, prior_)
        failure = reward_nll(sg(self.adversary)(distractor.features), batch)
        losses = {
            "image": image_nll(picture, batch.obs, self.image_std),
            "reward": reward_nll(self.reward(task.features), batch),
            "kl": free(divergence, self.free_nats, self.of_mean),
            "alone": self.weights[1] * image_nll(alone, batch.obs, self.image_std),
            "distractor_kl": free(divergence_, self.free_nats, self.of_mean),
            "adversary": -self.weights[0] * failure,
        }
        metrics = {
            "kl": divergence.mean(),
            "distractor_kl": divergence_.mean(),
            "mask": mask.mean(),
            "adversary_nll": failure.mean(),
            "posterior_std": posterior.std.mean(),
            "prior_std": prior.std.mean(),
        }
        return task, losses, metrics

    def prepare(self, moments: "Moments", batch: Batch, key):
        """The adversary's steps on this batch's distractor latents, which do not feel them."""
        features, optimiser = sg(self.observe(batch, key)[1][0].features), adam(*self.rate)

        def step(carry, _):
            head, state = carry
            gradient = eqx.filter_grad(lambda head: reward_nll(head(features), batch).mean())(head)
            return apply(optimiser, parts.mean(gradient), state, head), None

        start = self.adversary, moments.adversary
        (adversary, state), _ = jax.lax.scan(step, start, length=self.inner_steps)
        return eqx.tree_at(lambda model: model.adversary, self, adversary), moments._replace(adversary=state)

    @staticmethod
    def optimiser(config) -> optax.GradientTransformation:
        """An Adam with a clip of its own for each group. What one stream minimises does not depend on the other's
        parameters, so a single gradient of the sum serves both; the joint decoders, whose picture is in both lines,
        take it twice. The adversary is not moved here but in `prepare`."""
        own, rate = ("distractor", "joint", "adversary"), adam_of(config)
        groups = {"task": adam(*rate), "distractor": adam(*rate), "adversary": optax.set_to_zero()}
        groups["joint"] = optax.chain(optax.scale(2.0), adam(*rate))

        def label(model):
            labels = jax.tree.map(lambda _: "task", model)
            names = [jax.tree.map(lambda _, name=name: name, getattr(model, name)) for name in own]
            return eqx.tree_at(lambda m: [getattr(m, name) for name in own], labels, names)

        step = optax.partition(groups, label)

        def init(model):
            return Moments(step.init(model), adam(*rate).init(model.adversary))

        def update(gradients, moments, model):
            updates, state = step.update(gradients, moments.groups, model)
            return updates, moments._replace(groups=state)

        return optax.GradientTransformation(init, update)

    def pictures(self, batch: Batch, key):
        """The picture as it is seen and told by both streams, what each adds to it, the mask (white is the task's),
        and what the distractor stream tells alone."""
        (task, *_), (distractor, *_) = self.observe(batch, key)
        picture, mask, of_task, of_distractor = self.joint(task.features, distractor.features)
        films = {
            "joint": picture,
            "task": mask * of_task,
            "distractor": (1 - mask) * of_distractor,
            "mask": jnp.broadcast_to(2 * mask - 1, picture.shape),
            "distractor alone": self.distractor.decoder(distractor.features),
        }
        return {"seen": batch.obs[:, 0]} | {name: to_picture(film[:, 0]) for name, film in films.items()}


class Moments(NamedTuple):
    groups: optax.OptState
    adversary: optax.OptState


class Distractor(eqx.Module):
    encoder: Encoder
    rssm: RSSM
    decoder: Decoder  # q(o_t | z-)

    def __init__(self, config, action_size: int, key):
        k = jax.random.split(key, 3)
        self.encoder = make_encoder(config, k[0])
        self.rssm = make_rssm(config, action_size, self.encoder.size, k[1])
        self.decoder = make_decoder(config, config.belief + config.state, self.encoder.size, k[2])


class Joint(eqx.Module):
    """Each stream decodes a picture and three features of each pixel, from which the mask is told."""

    task: Decoder
    distractor: Decoder
    mask: Linear

    def __init__(self, config, encoding: int, key):
        k, features = jax.random.split(key, 3), config.belief + config.state
        self.task, self.distractor = (make_decoder(config, features, encoding, k[i], outputs=6) for i in (0, 1))
        self.mask = Linear(6, 1, k[2])

    def __call__(self, task, distractor):
        """The joint picture, the mask, which is 1 where the picture is the task's, and each stream's picture."""
        of_task, task_features = jnp.split(self.task(task), 2, -1)
        of_distractor, distractor_features = jnp.split(self.distractor(distractor), 2, -1)
        features = jnp.concatenate([task_features, distractor_features], -1)
        mask = jax.nn.sigmoid((features * self.mask.weight[:, 0]).sum(-1, keepdims=True) + self.mask.bias)
        return mask * of_task + (1 - mask) * of_distractor, mask, of_task, of_distractor


def adam_of(config) -> tuple:
    return config.model_lr, config.clip, config.adam_eps
