"""The least error that any policy of the last states can have on TicketPricing-v0.

With y_j = s_j sign(s_{j-1}) = u_o,j-1 - sign(s_{j-1}) u_e,j the states are noisy readings of u_o. The demand u_o, a
mean of 30 uniform draws, is taken as Gaussian. Its law given the readings is then Gaussian, too, for each sign that the
state before the oldest may have had, and the best action E[clip(-s_t / u_o,t) | states] is a one-dimensional integral.
The state law does not depend on the policy, and a policy's own past actions say nothing about u_o: this is the floor of
every learner, confounded or not.

    python benchmarks/ticket_pricing_floor.py
"""

import argparse

import numpy as np
from scipy.special import softmax

from prudent.envs import TicketPricingBatch, ticket_expert

STEP = 105  # Far from the fixed first state.
VARIANCE_O, VARIANCE_E = 1 / 90, 0.01
GRID = np.linspace(-4, 4, 401)
WEIGHT = np.exp(-(GRID**2) / 2) / np.exp(-(GRID**2) / 2).sum()


def correlation(lag: np.ndarray, length: int) -> np.ndarray:
    """Of two means of ``length`` draws that are ``lag`` steps apart."""
    return np.maximum(0.0, 1 - np.abs(lag) / length)


def floor(horizon: int, n_states: int, episodes: int, seed: int) -> tuple[float, float]:
    """Mean squared error of the best policy of the last ``n_states`` states, with its standard error."""
    batch = TicketPricingBatch(episodes, noise_horizon=horizon)
    obs, info = batch.reset(seed=seed)
    states = [obs[:, 0]]
    for _ in range(STEP):
        obs, _, _, _, info = batch.step(np.zeros((episodes, 1)))
        states.append(obs[:, 0])
    s, wanted = np.stack(states, axis=1), ticket_expert(info["expert_obs"])[:, 0]
    steps = np.arange(STEP - n_states + 1, STEP + 1)
    # Nobody who sees these states knows the sign of the one before the oldest: it is + or -.
    actions, log_likelihoods = zip(*[best_action(s, steps, horizon, before) for before in (1.0, -1.0)], strict=True)
    weight = softmax(np.stack(log_likelihoods), axis=0)
    error = (np.sum(weight * np.stack(actions), axis=0) - wanted) ** 2
    return float(error.mean()), float(error.std() / episodes**0.5)


def best_action(s: np.ndarray, steps: np.ndarray, horizon: int, before: float) -> tuple[np.ndarray, np.ndarray]:
    """Best action given the states at ``steps`` and the sign ``before`` them; log-likelihood of these states."""
    sign = np.sign(s[:, steps - 1])
    sign[:, 0] = before
    readings = s[:, steps] * sign
    lags = steps[:, None] - steps
    demand, cost = VARIANCE_O * correlation(lags, 30), VARIANCE_E * correlation(lags, horizon)
    cross = VARIANCE_O * correlation(STEP - (steps - 1), 30)
    covariance = demand + sign[:, :, None] * sign[:, None] * cost
    both = np.stack([np.broadcast_to(cross, readings.shape), readings], axis=-1)
    gain, whitened = np.moveaxis(np.linalg.solve(covariance, both), -1, 0)
    mean = np.sum(gain * readings, axis=1)
    spread = np.sqrt(np.maximum(VARIANCE_O - gain @ cross, 1e-10))
    u_o = mean[:, None] + spread[:, None] * GRID
    seen = np.stack([np.broadcast_to(s[:, STEP, None], u_o.shape), u_o], axis=-1)
    log_likelihood = -(np.sum(readings * whitened, axis=1) + np.linalg.slogdet(covariance)[1]) / 2
    return ticket_expert(seen)[..., 0] @ WEIGHT, log_likelihood


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1000)
    arguments = parser.parse_args()
    print("states seen     " + "".join(f"{f'k = {k}':>16}" for k in (1, 5, 10, 20)))
    for label, count in (
        ("two", lambda k: 2),
        ("three", lambda k: 3),
        ("k + 3", lambda k: k + 3),
        ("40", lambda k: 40),
    ):
        cells = [floor(k, count(k), arguments.episodes, arguments.seed) for k in (1, 5, 10, 20)]
        print(f"{label:16}" + "".join(f"{f'{value:.3f} ({error:.3f})':>16}" for value, error in cells), flush=True)


if __name__ == "__main__":
    main()
