"""IHDP and PM-CMR: real covariates, synthetic instrument, action and outcome (Wu et al., 2023).

u ~ N(0,1) hidden, z ~ Unif{0..K-1} (one ordinal column)
action  t = b_z + sum_i c_{z,i} x_i + 0.2 u + N(0, 0.1)
effect  v = -1.5 t + 0.9 t^2 + (2/6) sum_i x_i - |x_1 x_2| - sin(10 + x_3^2)
outcome y = v + 2 u + N(0, 0.1)

N(m, s) has standard deviation s. Outcome and effect are then shifted and scaled by the mean and standard deviation of
the outcomes of the training part. Rows are shuffled and split 63 / 27 / 10 % into training, validation and test parts.
Published errors under this design are those of the validation part.
"""

import functools
import math
from importlib import resources
from typing import Any

import numpy as np

from prudent.datasets._design import Design, SplitDesign, generator
from prudent.datasets._files import data_file
from prudent.errors import DataError

MAX_DOMAINS = 5
_OFFSET = np.array([0.0, 1.0, 0.0, -0.2, -0.8])
_SLOPE = np.array(
    [
        [0.8, -0.2, -0.2, -0.4, -0.7, -0.1],
        [0.2, -0.9, 0.8, -0.9, 0.4, -0.9],
        [-0.8, 0.0, 0.8, -0.1, 0.3, 0.6],
        [-0.2, -0.8, 0.7, 0.9, 0.9, 0.4],
        [-1.0, -0.2, -0.5, -0.6, -0.9, 0.0],
    ]
)
# Actions among which a policy chooses; the effect is convex in t and t = 5 is best for every unit.
ACTION_RANGE = (-3.0, 5.0)
IHDP_COLUMNS = ("bw", "b.head", "preterm", "birth.o", "nnhealth", "momage")
PM_CMR_COLUMNS = (
    "civil_unemploy_2000",
    "median_HH_inc_2000",
    "eduattain_HS_2000",
    "femaleHH_ns_pct_2000",
    "vacant_HHunit_2000",
    "owner_occ_pct_2000",
)


def make_ihdp(*, seed: int = 0, n_domains: int = 5) -> SplitDesign:
    """IHDP: 747 infants with six covariates, split 470 / 202 / 75. The covariates come with the package.

    Parameters
    ----------
    seed : int
        Decides the noise, the instrument and the split: one repetition per seed.
    n_domains : int
        Values of the instrument (K), up to five.
    """
    with (resources.files("prudent.datasets") / "data" / "ihdp_covariates.csv").open() as file:
        raw = np.loadtxt(file, delimiter=",", skiprows=1)
    return _make(_standardise(raw, ddof=1), list(IHDP_COLUMNS), n_domains, seed)


def make_pm_cmr(*, seed: int = 0, n_domains: int = 5) -> SplitDesign:
    """PM-CMR: 2132 counties of the United States with six covariates of the year 2000, split 1343 / 575 / 214.

    The covariates are read from ``PRUDENT_DATA/pm_cmr_counties.csv``, which needs the columns ``PM_CMR_COLUMNS``; the
    particle and mortality columns of the source are not used. Parameters as in :func:`make_ihdp`.
    """
    path = data_file(
        "pm_cmr_counties.csv",
        what="The county table of PM-CMR",
        cure="It comes from doi.org/10.23719/1506014 (Wyatt et al., 2020); keep one row per county.",
    )
    return _make(_standardise(_read_columns(str(path), PM_CMR_COLUMNS), ddof=0), list(PM_CMR_COLUMNS), n_domains, seed)


def ihdp_error(model: Any, data: SplitDesign, *, split: str = "test") -> float:
    """Mean squared error of ``model.effect`` at the observed actions of a part of ``data``, against the true effect.

    ``split="validation"`` is the part that published figures were measured on.
    """
    part = data.part(split)
    truth = part.truth(part.action, part.context)
    return float(np.mean((np.asarray(model.effect(part.action, part.context)).reshape(-1) - truth) ** 2))


# Both designs judge a model in the same way.
pm_cmr_error = ihdp_error


def _make(x: np.ndarray, columns: list[str], n_domains: int, seed: int) -> SplitDesign:
    if isinstance(n_domains, bool) or n_domains not in range(2, MAX_DOMAINS + 1):
        raise ValueError(f"n_domains must be a whole number from 2 to {MAX_DOMAINS}, got {n_domains!r}.")
    rng = generator(seed)
    n = len(x)
    z, u = rng.integers(n_domains, size=n), rng.standard_normal(n)
    t = _OFFSET[z] + np.sum(_SLOPE[z] * x, axis=1) + 0.2 * u + 0.1 * rng.standard_normal(n)
    y = raw_effect(t, x) + 2 * u + 0.1 * rng.standard_normal(n)
    order = rng.permutation(n)
    n_test = math.ceil(0.1 * n)
    n_train = round(0.7 * (n - n_test))
    rows = np.split(order, [n_train, n - n_test])
    mean, scale = y[rows[0]].mean(), y[rows[0]].std()
    shared = {
        "names": {"outcome": ["y"], "action": ["t"], "instruments": ["z"], "context": columns},
        "function": functools.partial(_scaled_effect, mean=mean, scale=scale),
        "action_range": ACTION_RANGE,
    }
    arrays = [
        {
            "outcome": ((y[part] - mean) / scale)[:, None],
            "action": t[part][:, None],
            "instruments": z[part][:, None].astype(float),
            "context": x[part],
        }
        for part in rows
    ]
    validation, test = (Design(**part, **shared) for part in arrays[1:])
    return SplitDesign(**arrays[0], **shared, validation=validation, test=test)


def raw_effect(t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Effect of action ``t (n,)`` on units ``x (n, 6)``, before scaling."""
    unit = x.sum(axis=1) / 3 - np.abs(x[:, 0] * x[:, 1]) - np.sin(10 + x[:, 2] ** 2)
    return -1.5 * t + 0.9 * t**2 + unit


def _scaled_effect(action: np.ndarray, context: np.ndarray | None, *, mean: float, scale: float) -> np.ndarray:
    assert context is not None
    return (raw_effect(action[:, 0], context) - mean) / scale


def _standardise(raw: np.ndarray, *, ddof: int) -> np.ndarray:
    return np.clip((raw - raw.mean(axis=0)) / raw.std(axis=0, ddof=ddof), -3, 3)


def _read_columns(path: str, columns: tuple[str, ...]) -> np.ndarray:
    import pandas as pd

    frame = pd.read_csv(path)
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        raise DataError(f"{path} needs the columns {', '.join(columns)}; it has no {absent[0]!r}.")
    values = frame[list(columns)].to_numpy(dtype=float)
    if not np.isfinite(values).all():
        raise DataError(f"{path} has missing values. Keep complete counties only.")
    return values
