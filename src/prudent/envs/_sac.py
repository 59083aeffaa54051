"""Soft actor-critic (Haarnoja et al., 2018) in Equinox, for one CPU core.

Two critics with layer normalisation and slow targets, an automatically tuned entropy weight, one actor update per two
critic updates. Many updates run in one ``lax.scan``; batches and noise are drawn on the host, where it is cheaper.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from prudent.nn import MLP
from prudent.nn._networks import Linear

LOG_STD_RANGE = (-5.0, 1.0)


@dataclasses.dataclass(frozen=True)
class SACConfig:
    """Hyper-parameters of the learner."""

    widths: tuple[int, ...] = (128, 128)
    """Hidden layers of actor and critics."""
    batch_size: int = 128
    """Transitions per update."""
    learning_rate: float = 5e-4
    """Adam's step size, for actor and critics."""
    discount: float = 0.98
    """Weight of the next step's value."""
    n_steps: int = 1
    """Rewards that are summed before the critic is asked; more carry news faster where a step is short."""
    target_rate: float = 0.01
    """How fast the target critics follow, per critic update."""
    entropy: float = -0.5
    """Entropy that the policy should keep, per action dimension."""
    capacity: int = 500_000
    """Transitions kept in the replay buffer."""


class Critic(eqx.Module):
    """Value of a state and an action."""

    layers: tuple[Linear, ...]
    gains: tuple[Float[Array, " h"], ...]
    head: Linear

    def __init__(self, in_size: int, widths: tuple[int, ...], *, key: PRNGKeyArray):
        keys = jax.random.split(key, len(widths) + 1)
        sizes = (in_size, *widths)
        self.layers = tuple(Linear(i, o, key=k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=False))
        self.gains = tuple(jnp.ones(width) for width in widths)
        self.head = Linear(widths[-1], 1, key=keys[-1], gain=0.1)

    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, " n"]:
        for layer, gain in zip(self.layers, self.gains, strict=True):
            x = layer(x)
            # Layer normalisation bounds the values of unseen actions, which are what makes critics diverge.
            x = x - jnp.mean(x, axis=-1, keepdims=True)
            x = jax.nn.relu(gain * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5))
        return self.head(x)[:, 0]


class Agent(eqx.Module):
    """Everything that learns, and the optimisers' moments."""

    actor: MLP
    critics: tuple[Critic, Critic]
    targets: tuple[Critic, Critic]
    log_alpha: Array
    actor_moments: Any
    critic_moments: Any
    alpha_moments: Any

    @staticmethod
    def start(obs_size: int, action_size: int, config: SACConfig, seed: int) -> "Agent":
        """A new agent; its mean action is zero."""
        keys = jax.random.split(jax.random.key(seed), 3)
        actor = MLP(obs_size, 2 * action_size, config.widths, activation="relu", key=keys[0])
        first, second = (Critic(obs_size + action_size, config.widths, key=key) for key in keys[1:])
        log_alpha = jnp.log(jnp.float32(0.1))
        adam = optax.scale_by_adam()
        return Agent(
            actor=actor,
            critics=(first, second),
            targets=(first, second),
            log_alpha=log_alpha,
            actor_moments=adam.init(eqx.filter(actor, eqx.is_inexact_array)),
            critic_moments=adam.init((first, second)),
            alpha_moments=adam.init(log_alpha),
        )


def act(actor: MLP, obs: Array, noise: Array) -> tuple[Array, Array]:
    """A sampled action in [-1, 1] and its log density."""
    mean, log_std = jnp.split(actor(obs), 2, axis=-1)
    log_std = jnp.clip(log_std - 1.0, *LOG_STD_RANGE)
    raw = mean + jnp.exp(log_std) * noise
    # log(1 - tanh(raw)^2), in a form that does not underflow.
    log_slope = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(-0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi) - log_slope, axis=-1)


def _critic_loss(critics, agent: Agent, batch, noise):
    obs, action, reward, next_obs, weight = batch
    next_action, log_density = act(agent.actor, next_obs, noise)
    pair = jnp.concatenate([next_obs, next_action], axis=-1)
    value = jnp.minimum(agent.targets[0](pair), agent.targets[1](pair)) - jnp.exp(agent.log_alpha) * log_density
    goal = jax.lax.stop_gradient(reward + weight * value)
    pair = jnp.concatenate([obs, action], axis=-1)
    return sum(jnp.mean((critic(pair) - goal) ** 2) for critic in critics)


def _actor_loss(actor, agent: Agent, obs, noise):
    action, log_density = act(actor, obs, noise)
    pair = jnp.concatenate([obs, action], axis=-1)
    value = jnp.minimum(agent.critics[0](pair), agent.critics[1](pair))
    return jnp.mean(jnp.exp(agent.log_alpha) * log_density - value), jnp.mean(log_density)


def _adam_step(params, grads, moments, rate):
    updates, moments = optax.scale_by_adam().update(grads, moments)
    return eqx.apply_updates(params, jax.tree.map(lambda u: -rate * u, updates)), moments


@eqx.filter_jit
def update(agent: Agent, batches: Any, noises: Array, config: SACConfig) -> tuple[Agent, Array]:
    """Updates in pairs: leaves of ``batches`` are (pairs, 2, batch, ...), ``noises`` (pairs, 3, batch, action)."""
    dynamic, static = eqx.partition(agent, eqx.is_array)
    target_entropy = config.entropy * noises.shape[-1]

    def step(dynamic, inputs):
        agent = eqx.combine(dynamic, static)
        pair, noise = inputs
        for number in range(2):
            batch = jax.tree.map(lambda a, n=number: a[n], pair)
            loss, grads = eqx.filter_value_and_grad(_critic_loss)(agent.critics, agent, batch, noise[number])
            critics, moments = _adam_step(agent.critics, grads, agent.critic_moments, config.learning_rate)
            targets = jax.tree.map(lambda t, c: t + config.target_rate * (c - t), agent.targets, critics)
            agent = dataclasses.replace(agent, critics=critics, critic_moments=moments, targets=targets)
        (_, log_density), grads = eqx.filter_value_and_grad(_actor_loss, has_aux=True)(
            agent.actor, agent, pair[0][1], noise[2]
        )
        actor, actor_moments = _adam_step(agent.actor, grads, agent.actor_moments, config.learning_rate)
        slope = -(log_density + target_entropy)
        log_alpha, alpha_moments = _adam_step(agent.log_alpha, slope, agent.alpha_moments, config.learning_rate)
        agent = dataclasses.replace(
            agent, actor=actor, actor_moments=actor_moments, log_alpha=log_alpha, alpha_moments=alpha_moments
        )
        return eqx.filter(agent, eqx.is_array), jnp.stack([loss, log_density])

    dynamic, trace = jax.lax.scan(step, dynamic, (batches, noises))
    return eqx.combine(dynamic, static), jnp.mean(trace, axis=0)


class Replay:
    """The last ``capacity`` transitions, in rows [obs, action, reward, next obs, weight of the next value]."""

    def __init__(self, obs_size: int, action_size: int, capacity: int):
        self.splits = np.cumsum([obs_size, action_size, 1, obs_size])
        self.rows = np.zeros((capacity, 2 * obs_size + action_size + 2), np.float32)
        self.n_added = 0

    def add(self, rows: np.ndarray) -> None:
        """Append rows; the oldest give way."""
        place = (self.n_added + np.arange(len(rows))) % len(self.rows)
        self.rows[place] = rows
        self.n_added += len(rows)

    def draw(self, rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, ...]:
        """Independent transitions, as (obs, action, reward, next obs, weight) with leading ``shape``."""
        rows = self.rows[rng.integers(min(self.n_added, len(self.rows)), size=shape)]
        obs, action, reward, next_obs, weight = np.split(rows, self.splits, axis=-1)
        return obs, action, reward[..., 0], next_obs, weight[..., 0]


def sum_rewards(
    reward: np.ndarray, ended: np.ndarray, cut: np.ndarray, *, discount: float, n_steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Discounted sums of up to ``n_steps`` rewards that do not cross the end of an episode or of the array.

    Arguments have shape (time, environments); ``cut`` marks the last step of an episode, ``ended`` that it ended by
    itself. Returns the sums, the time of the last reward in each, and the weight of the value after it.
    """
    length = len(reward)
    start = np.arange(length)[:, None]
    last = np.broadcast_to(start, reward.shape).copy()
    total, counted, going = np.zeros(reward.shape), np.zeros(reward.shape), np.ones(reward.shape, bool)
    for ahead in range(n_steps):
        place = np.minimum(start + ahead, length - 1)
        going &= start + ahead < length
        total += going * discount**ahead * np.take_along_axis(reward, place, axis=0)
        last = np.where(going, place, last)
        counted += going
        going &= ~np.take_along_axis(cut, place, axis=0)
    return total, last, discount**counted * (1.0 - np.take_along_axis(ended, last, axis=0))


def numpy_policy(actor: MLP):
    """The actor on the host: a call costs a few dozen microseconds instead of a dispatch to JAX."""
    layers = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in actor.layers]
    skip, bias = np.asarray(actor.free_skip), np.asarray(actor.free_bias)

    def policy(obs: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        x = obs
        for weight, offset in layers[:-1]:
            x = np.maximum(x @ weight + offset, 0.0)
        mean, log_std = np.split(x @ layers[-1][0] + layers[-1][1] + obs @ skip + bias, 2, axis=-1)
        return np.tanh(mean if noise is None else mean + np.exp(np.clip(log_std - 1.0, *LOG_STD_RANGE)) * noise)

    return policy
