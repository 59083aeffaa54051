"""Which price should each customer see? A policy from confounded data, judged by the truth.

The best price depends on season, wealth and membership. Hidden demand moved both the prices that were set and the
profit: a method that ignores the instrument (cost) learns to ask too much. PRUDENT_EXAMPLE_ROWS makes the example
smaller.
"""

import os

import numpy as np

from prudent import IVRegression, datasets
from prudent.cmr import DMLCMR
from prudent.iv import LinLCB, suboptimality
from prudent.nn import TrainConfig


def main() -> None:
    rows = int(os.environ.get("PRUDENT_EXAMPLE_ROWS", "3000"))
    data = datasets.make_pricing(rows, seed=0)
    # One fold and short training keep the example quick; DMLCMR(n_folds=10) is the better choice.
    estimator = DMLCMR(
        n_folds=1,
        n_repeats=2,
        n_functions=2,
        train=TrainConfig(weight_decay=0.5, batch_size=64, max_steps=600, evaluate_every=50),
        function_train=TrainConfig(weight_decay=0.3, max_steps=800, evaluate_every=100),
    )
    model = IVRegression(estimator, seed=0).fit(**data.roles())
    with_instrument = model.policy(data.action_range)

    # A bandit regresses profit on context and price, and takes what it finds for the effect of the price.
    bandit = LinLCB().fit(outcome=data.outcome, action=data.action, context=data.context, actions=data.action_range)

    rng = np.random.default_rng(0)
    policies = {
        "instrument used (DML-CMR)": with_instrument,
        "instrument ignored (LinLCB)": bandit,
        "one price for all": lambda contexts: np.zeros(len(contexts)),
        "random prices": lambda contexts: rng.uniform(*data.action_range, len(contexts)),
    }
    contexts = data.contexts(1000, seed=1)
    for name, policy in policies.items():
        judged = suboptimality(policy, data, contexts, actions=data.action_range)
        print(f"{name:<28} loses {judged}")

    some = contexts[:3]
    print("prices for three customers:", with_instrument.act(some).round(2))
    print("best prices for them:      ", datasets.best_price(some).round(2))


if __name__ == "__main__":
    main()
