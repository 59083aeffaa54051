"""Would DML-IL correct cloning? t of cloning's own moment per run, and how many predictions leave the actions' range.

Tables that were made before DML-IL put this question (``start="tested"``) stand where t is above 1 and no prediction
leaves the range: there the fit is the same, unless the correction ran off, which its errors would show. Only the
regression is fitted here.
"""

import argparse
import contextlib
from typing import Any
from unittest import mock

import numpy as np

from prudent import CausalImitation, imitation
from prudent.bench.experiments import imitation as experiments
from prudent.cmr import DMLCMR, _baseline, _dmlcmr

TABLES = {
    "ticket-pricing": experiments.ticket_pricing,
    "ticket-pricing-v1": experiments.ticket_pricing_closed,
    "half-cheetah": experiments.half_cheetah,
    "hopper": experiments.hopper,
    "ant": experiments.ant,
}


class Measured(Exception):
    """Everything is known that is asked for."""


def measure(budget: dict[str, Any], k: int, seed: int) -> tuple[float, int]:
    """(t of cloning's moment, predictions outside of twice the range) of one run."""
    env = imitation.make_env(budget["env"], noise_horizon=k)
    demonstrations = imitation.demonstrate(env, episodes=budget["episodes"], steps=budget["steps"], seed=seed)
    found: dict[str, Any] = {}
    fit_baseline, measure_moment = _baseline.fit_baseline, _dmlcmr.measure_moment

    def unbounded(y: np.ndarray, x: np.ndarray, plan: Any, *, bounds: np.ndarray, **settings: Any) -> Any:
        stage, fitted, is_linear = fit_baseline(y, x, plan, **settings)
        outside = [np.sum((f < bounds[0]) | (f > bounds[1])) for f in (fitted, stage.predict(x))]
        found["outside"] = int(sum(outside))
        return stage, np.clip(fitted, *bounds), is_linear

    def kept(*arguments: Any) -> Any:
        found["moment"] = measure_moment(*arguments)
        return found["moment"]

    stop = mock.Mock(side_effect=Measured)
    learner = CausalImitation(
        DMLCMR(n_folds=10),
        noise_horizon=k,
        policy_states=budget["policy_states"],
        relative=tuple(budget["relative"]),
        seed=seed,
    )
    with (
        mock.patch.object(_baseline, "fit_baseline", unbounded),
        mock.patch.object(_dmlcmr, "measure_moment", kept),
        mock.patch("prudent.cmr._law.fit_law", stop),
        mock.patch("prudent.cmr._outcome.fit_outcome", stop),
        mock.patch("prudent.cmr._outcome.observed_outcome", stop),
        contextlib.suppress(Measured),
    ):
        learner.fit(demonstrations)
    return found["moment"].value / found["moment"].standard_error, found["outside"]


def main() -> None:
    """Print one line per horizon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help=f"some of {', '.join(TABLES)}; by default all")
    parser.add_argument("--runs", type=int, help="seeds 0 .. RUNS-1; by default those of the table")
    arguments = parser.parse_args()
    for name in arguments.tables or TABLES:
        experiment = TABLES[name]
        for k in experiment.grid["k"]:
            rows = [measure(experiment.budget, int(k), seed) for seed in range(arguments.runs or experiment.runs)]
            values = " ".join(f"{t:.1f}" for t, _ in rows)
            print(f"{name:18} k = {k:2}: t = {values}; outside: {sum(n for _, n in rows)}", flush=True)


if __name__ == "__main__":
    main()
