"""Speed of the neural core on this machine: ratios to a stated alternative, and growth with rows and folds.

Run by ``make bench-speed``. Each fit runs in a process of its own, once with an empty compilation cache (cold) and
once with the cache that this left behind (warm).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import unittest.mock

DEMAND = """
import time
from prudent import IVRegression, datasets
from prudent.cmr import DMLCMR
data = datasets.make_demand({n}, seed=0)
start = time.perf_counter()
model = IVRegression(DMLCMR(n_folds={folds}), seed=0).fit(**data.roles())
print(time.perf_counter() - start, datasets.demand_error(model))
"""
IMITATION = """
import time
from prudent import CausalImitation, imitation
from prudent.cmr import DMLCMR
env = imitation.make_env("{env}", noise_horizon={k})
demonstrations = imitation.demonstrate(env, episodes=40, steps=500, seed=0)
start = time.perf_counter()
learner = CausalImitation(DMLCMR(n_folds=10), noise_horizon={k}, relative={relative}, policy_states={states}, seed=0)
learner.fit(demonstrations)
print(time.perf_counter() - start, imitation.evaluate(learner.policy(), env, episodes=10, steps=500, seed=0).mse)
"""


def fit(code: str, cache: str) -> tuple[float, float]:
    """(seconds, error) of one fit in a fresh process."""
    environment = {**os.environ, "PRUDENT_COMPILATION_CACHE": cache}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    seconds, error = done.stdout.split()[-2:]
    return float(seconds), float(error)


def fits(title: str, cases: dict[str, str]) -> None:
    """Time of whole fits, and the error that they reach."""
    print(f"\n{title}, whole fits, this machine\n")
    print(f"{'':<32} {'cold s':>8} {'warm s':>8} {'MSE':>7}")
    for label, code in cases.items():
        with tempfile.TemporaryDirectory() as cache:
            cold, _ = fit(code, cache)
            warm, error = fit(code, cache)
        print(f"{label:<32} {cold:>8.1f} {warm:>8.1f} {error:>7.3f}", flush=True)


def stacking() -> None:
    """One compiled program for ten networks, against the same ten fitted one after the other."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from prudent import nn

    def squared(network, batch, key):
        return jnp.sum((network(batch["c"], key=key) - batch["y"]) ** 2, axis=-1)

    rng = np.random.default_rng(0)
    data = {"c": rng.normal(size=(5000, 9)).astype(np.float32)}
    data["y"] = data["c"][:, :1] ** 2
    config = nn.TrainConfig(batch_size=64, max_steps=500, evaluate_every=100, patience=0)
    spec = nn.TabularSpec(embed=(0, 1))
    rows, held = np.arange(4000), np.arange(4000, 5000)

    def run(members: int) -> float:
        stack = nn.stack_networks(lambda key: spec(9, 1, key=key), members, jax.random.key(0))
        start = time.perf_counter()
        nn.fit_stack(stack, squared, data, [rows] * members, [held] * members, config, seed=0)
        return time.perf_counter() - start

    for members in (1, 10):
        run(members)  # compile
    alone, stacked = run(1), run(10)
    # What stacking several runs of an experiment into one program could gain beyond the folds of one fit.
    with unittest.mock.patch("prudent.nn._train.GROUP", 40):
        run(40)
        four_runs = run(40)
    without, dropped = (_step_microseconds(rate, squared, data, rows, held, config) for rate in (0.0, 0.1))
    print("\nTraining loop, networks 128-64 with embeddings, batch 64, 500 steps\n")
    print(f"ten networks one by one / as one stack: {10 * alone / stacked:.2f} x")
    print(f"four stacks of ten / one stack of forty: {4 * stacked / four_runs:.2f} x")
    print(f"time with dropout / without:            {dropped / without:.2f} x")


def _step_microseconds(rate, squared, data, rows, held, config) -> float:
    import jax

    from prudent import nn

    spec = nn.MLPSpec((128, 64), activation="relu", dropout_rate=rate)
    for _ in range(2):
        stack = nn.stack_networks(lambda key: spec(9, 1, key=key), 10, jax.random.key(0))
        start = time.perf_counter()
        nn.fit_stack(stack, squared, data, [rows] * 10, [held] * 10, config, seed=0)
    return (time.perf_counter() - start) / config.max_steps / 10 * 1e6


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small fit instead of the table")
    parser.add_argument("--only", choices=("stacking", "demand", "imitation"), help="one part")
    arguments = parser.parse_args()
    if arguments.only in (None, "stacking"):
        stacking()
    if arguments.only in (None, "demand"):
        # Published code needs 1668 s for n = 5000, K = 10 on one core (facts of the project).
        full = [(1000, 10), (2000, 10), (5000, 1), (5000, 5), (5000, 10), (5000, 20), (10_000, 10)]
        cases = [(1000, 2)] if arguments.quick else full
        fits(
            "DMLCMR on the demand design",
            {f"{n} rows, {folds} folds": DEMAND.format(n=n, folds=folds) for n, folds in cases},
        )
    if arguments.only in (None, "imitation") and not arguments.quick:
        # Published: 20 minutes, and a few hours on a server with a GPU.
        ticket = IMITATION.format(env="TicketPricing-v0", k=5, relative=(), states=None)
        robot = IMITATION.format(env="ConfoundedHalfCheetah-v0", k=10, relative=(0,), states=2)
        fits("DML-IL, 10 folds, 20,000 samples", {"ticket pricing, k = 5": ticket, "half-cheetah, k = 10": robot})


if __name__ == "__main__":
    main()
