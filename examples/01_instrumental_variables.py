"""What would happen if we set the price? Instrumental variables from a confounded table.

Sales and price are moved together by events that nobody recorded. The fuel price moves the ticket price and nothing
else: it is an instrument. PRUDENT_EXAMPLE_ROWS makes the example smaller.
"""

import os

import matplotlib

matplotlib.use("Agg")

import prudent
from prudent import IVRegression, datasets
from prudent.cmr import DMLCMR


def main() -> None:
    rows = int(os.environ.get("PRUDENT_EXAMPLE_ROWS", "2000"))
    data = datasets.make_demand(rows, seed=0)
    frame = data.frame()

    model = IVRegression(DMLCMR(n_folds=2), seed=0).fit(
        frame, outcome="sales", action="price", instruments="fuel", context=data.names["context"]
    )
    print(model.summary())
    print("error on the test grid:", round(datasets.demand_error(model), 3))

    policy = model.policy(actions=(-3.0, 3.0))
    print("best prices for the first rows:", policy.act(frame.head(3)))
    print("value of that policy:", model.policy_value(policy))

    model.plot_effect(truth=lambda a: data.truth(a, data.context)).figure.savefig("effect.png")
    model.save("demand-model")
    assert (prudent.load("demand-model").effect(0.0, frame.head(3)) == model.effect(0.0, frame.head(3))).all()


if __name__ == "__main__":
    main()
