"""No instrument, but two traces of what is hidden: proximal causal learning.

Demand for tickets is hidden and moves price and sales together. Two things follow it: fuel costs (which act on the
price and not on sales) and page views (which the price does not move). PRUDENT_EXAMPLE_ROWS makes it smaller.
"""

import os

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

import prudent
from prudent import ProximalRegression, datasets
from prudent.cmr import DMLCMR


def main() -> None:
    rows = int(os.environ.get("PRUDENT_EXAMPLE_ROWS", "2000"))
    data = datasets.make_demand_proximal(rows, seed=0)
    frame = data.frame()

    model = ProximalRegression(DMLCMR(n_folds=1), seed=0).fit(
        frame,
        outcome="sales",
        treatment="price",
        outcome_proxy="views",
        treatment_proxy=["fuel_1", "fuel_2"],
    )
    print(model.summary())
    print("error on the test grid:", round(datasets.demand_proximal_error(model), 1))
    prices = [20.0, 25.0, 30.0]
    print(model.interval(prices))
    print("truth:", data.truth(prices).round(1))

    prices = np.linspace(10, 40, 60)
    plain = HistGradientBoostingRegressor(random_state=0).fit(data.treatment, data.outcome[:, 0])
    found = model.interval(prices)
    fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
    ax.plot(prices, data.truth(prices), "k--", linewidth=1, label="truth")
    ax.plot(prices, plain.predict(prices[:, None]), color="tab:red", label="boosted trees, no proxies")
    ax.plot(prices, found.plug_in, color="tab:blue", label="DML-CMR with two proxies")
    ax.fill_between(prices, found.lower, found.upper, color="tab:blue", alpha=0.2, label="95 % interval, debiased")
    # A part of the average runs over views that no row has together with such a price.
    wider = (found.lower - found.at_stake, found.upper + found.at_stake)
    ax.fill_between(
        prices, *wider, color="tab:blue", alpha=0.08, linewidth=0, label="and what is at stake without data"
    )
    ax.set(xlabel="ticket price", ylabel="mean sales", ylim=(0, 100), title="sales if the price were set")
    ax.legend(frameon=False)
    fig.savefig("proximal.png", dpi=120)

    model.save("proximal-model")
    assert np.array_equal(prudent.load("proximal-model").effect([20.0]), model.effect([20.0]))


if __name__ == "__main__":
    main()
