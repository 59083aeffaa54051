"""How often proximal intervals cover on the demand design, as they are and widened by what is at stake without data.

    python benchmarks/proximal_at_stake.py --draws 11

Seeds are of their own, not those of an experiment.
"""

import argparse
import warnings

import numpy as np

from prudent import ProximalRegression, datasets
from prudent.cmr import DMLCMR

FIRST_SEED = 100_000
PRICES = np.linspace(10, 37.5, 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=11)
    parser.add_argument("--rows", type=int, default=2000)
    options = parser.parse_args()
    # What a fit says about weak proxies and prices outside the data is no news here: the design is fixed.
    warnings.simplefilter("ignore", UserWarning)
    plain, widened = [], []
    for seed in range(FIRST_SEED, FIRST_SEED + options.draws):
        data = datasets.make_demand_proximal(options.rows, seed=seed)
        found = ProximalRegression(DMLCMR(n_folds=5), seed=seed).fit(**data.roles()).interval(PRICES)
        miss = np.abs(found.value - data.truth(PRICES)) - (found.upper - found.value)
        plain.append(miss <= 0)
        widened.append(miss <= found.at_stake)
        print(f"seed {seed}: covers at {plain[-1].mean():.0%} of the prices, widened at {widened[-1].mean():.0%}")
    print("price    covers  widened")
    for price, a, b in zip(PRICES, np.mean(plain, axis=0), np.mean(widened, axis=0), strict=True):
        print(f"{price:5.1f}  {a:8.0%} {b:8.0%}")
    print(f"  all  {np.mean(plain):8.0%} {np.mean(widened):8.0%}   ({options.draws} draws of {options.rows} rows)")


if __name__ == "__main__":
    main()
