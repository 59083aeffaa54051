"""Proximal regression: E[Y | do(a)] from two proxies of a hidden confounder.

With outcome Y, treatment A, outcome proxy W, treatment proxy V and context X, a bridge function h solves
E[Y - h(A, W, X) | A, V, X] = 0, and E[Y | do(a)] = E[h(a, W, X)] (Miao, Geng and Tchetgen Tchetgen, 2018). Any moment
estimator finds h; the columns of A and X stand on both sides and pass through, so that only W is modelled.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import clone

from prudent._roles import Role, check_enough, check_varying, encode_roles, read_groups, read_roles
from prudent.cmr import DMLCMR, MomentError, MomentEstimator
from prudent.cmr._arrays import is_discrete, numeric_columns
from prudent.cmr._base import check_seed
from prudent.cmr._debias import Correction, check_level
from prudent.cmr._names import check_estimator
from prudent.cmr._pairs import beside, even_choice, mean_over_others, over_units
from prudent.cmr._twostage import TooFewInstrumentsError, TwoStageReport
from prudent.errors import DataError, NotFittedError, RoleError
from prudent.proximal._compress import WIDE, Compression
from prudent.proximal._copies import check_copies, one_column_each
from prudent.proximal._diagnosis import ProximalDiagnosis
from prudent.proximal._interval import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "outcome": "Outcome",
    "treatment": "Treatment",
    "outcome_proxy": "Outcome proxy",
    "treatment_proxy": "Treatment proxy",
    "context": "Context",
}
REQUIRED = ("outcome", "treatment", "outcome_proxy", "treatment_proxy")
# Components by role: the proxy is modelled, which is harder than to pass it through.
COMPONENTS = {"treatment": 64, "outcome_proxy": 16, "treatment_proxy": 64, "context": 64}


class ProximalRegression:
    """Causal effect of a treatment on an outcome, identified by two proxies of a hidden confounder.

    Parameters
    ----------
    estimator : MomentEstimator, default=DMLCMR(n_folds=10)
        How the moment restriction is solved.
    seed : int, default=0
        Decides every random choice.
    compress : bool, default=True
        Replace roles of more than 128 columns (pictures) by coordinates in the span of their leading principal
        components: 16 for the outcome proxy, 64 for the others. False hands all columns to the estimator.

    Examples
    --------
    >>> from prudent import ProximalRegression, datasets
    >>> from prudent.cmr import DMLCMR
    >>> data = datasets.make_demand_proximal(1000, seed=0)
    >>> model = ProximalRegression(DMLCMR(n_folds=2), seed=0).fit(**data.roles())   # doctest: +SKIP
    >>> model.effect([10.0, 20.0, 30.0])   # doctest: +SKIP
    """

    def __init__(self, estimator: MomentEstimator | None = None, *, seed: int = 0, compress: bool = True):
        self.estimator = estimator
        self.seed = seed
        self.compress = compress

    def __repr__(self) -> str:
        state = "fitted" if hasattr(self, "estimator_") else "not fitted"
        return f"ProximalRegression({self.estimator or DMLCMR()}, seed={self.seed}), {state}"

    def fit(
        self,
        data: Any = None,
        *,
        outcome: Any,
        treatment: Any,
        outcome_proxy: Any,
        treatment_proxy: Any,
        context: Any = None,
        groups: Any = None,
    ) -> Self:
        """Fit on a pandas or polars frame with column names per role, or on arrays per role.

        Parameters
        ----------
        outcome_proxy : W
            What the confounder moves, and the treatment does not; it may act on the outcome.
        treatment_proxy : V
            What the confounder moves, and what does not act on the outcome; it may act on the treatment.
        groups : optional
            Unit of every row (a person, a shop) where rows of one unit belong together.

        Pictures may be given as (n, height, width) or (n, height, width, channels). Text, boolean and categorical
        columns are encoded.
        """
        check_seed(self.seed)
        check_estimator(
            self.estimator, "Classes with an effect method of their own are fitted by themselves, with the same roles."
        )
        given = {
            "outcome": outcome,
            "treatment": treatment,
            "outcome_proxy": outcome_proxy,
            "treatment_proxy": treatment_proxy,
            "context": context,
        }
        if data is None:
            given = {name: flatten_pictures(value) for name, value in given.items()}
        roles, matrices = read_roles(data, given, TITLES, REQUIRED)
        groups = read_groups(data, groups, len(matrices["outcome"]))
        y = matrices["outcome"]
        check_enough(len(y))
        check_varying(roles, matrices, REQUIRED, wide=WIDE)
        check_copies({name: (role.names, one_column_each(role, matrices[name])) for name, role in roles.items()})
        matrices.setdefault("context", np.empty((len(y), 0)))
        compression = self._compressions(matrices)
        parts = {
            name: compression[name](matrix) if name in compression else matrix
            for name, matrix in matrices.items()
            if name != "outcome"
        }
        x = np.hstack([parts["treatment"], parts["outcome_proxy"], parts["context"]])
        c = np.hstack([parts["treatment"], parts["treatment_proxy"], parts["context"]])
        try:
            estimator = self._prepared(parts, is_picture=matrices["treatment"].shape[1] > WIDE).fit(
                y, x, c, seed=int(self.seed), groups=groups
            )
        except TooFewInstrumentsError as cause:
            raise DataError(
                f"The outcome proxies ({_listed(roles['outcome_proxy'].names)}) enter with {cause.n_terms} terms, for "
                f"which two-stage least squares needs as many of the treatment proxies "
                f"({_listed(roles['treatment_proxy'].names)}), got {cause.n_instruments}. Are they swapped? Else bring "
                "more treatment proxies, or leave out outcome proxies."
            ) from None
        h = estimator.predict(x)
        levels = None
        if matrices["treatment"].shape[1] == 1 and is_discrete(matrices["treatment"][:, 0]):
            levels = [float(v) for v in np.unique(matrices["treatment"])]
        is_local = matrices["treatment"].shape[1] == 1 and levels is None
        correction = Correction.of(y, x, c, h, seed=int(self.seed), groups=groups, is_local=is_local)
        diagnosis = ProximalDiagnosis.of(
            estimator,
            y,
            parts,
            h,
            proxy_names=_encoded_names(roles["outcome_proxy"], parts["outcome_proxy"].shape[1]),
            link=(_one_or_count(roles["treatment_proxy"]), _one_or_count(roles["treatment"])),
            n_proxies=(_freedom(roles["outcome_proxy"]), _freedom(roles["treatment_proxy"])),
            kept={name: part.kept for name, part in compression.items()},
            seed=int(self.seed),
            groups=groups,
        )
        # Only now: a fit that fails leaves an earlier one as it was.
        self.roles_, self.compression_, self.estimator_ = roles, compression, estimator
        self.correction_, self.diagnosis_ = correction, diagnosis
        if isinstance(getattr(estimator, "report_", None), TwoStageReport):
            inputs = [name for name in ("treatment", "outcome_proxy", "context") if name in roles]
            names = [name for role in inputs for name in _encoded_names(roles[role], parts[role].shape[1])]
            estimator.report_ = estimator.report_.with_names(names, roles["outcome"].names)
        self.treatment_levels_ = levels
        self.treatment_range_ = np.stack([matrices["treatment"].min(axis=0), matrices["treatment"].max(axis=0)])
        # The proxies and contexts to average over; they are saved with the model, which could not do its work without.
        self.sample_ = np.hstack([parts["outcome_proxy"], parts["context"]])
        for text in self.diagnosis_.warnings():
            if text not in self.diagnosis_.notes:  # of which the estimator has warned
                warnings.warn(text, stacklevel=2)
        return self

    def effect(self, treatment: Any, *, return_error: bool = False) -> Any:
        """Mean outcome E[Y | do(a)] if the treatment is set to a; :meth:`contrast` has differences.

        It is the mean of the bridge h(a, W, context) over the observed proxies and contexts; over an even choice of
        them where treatments times rows exceed half a million. Treatments outside the observed range are warned about.

        Returns shape (n,) or (n, outcomes). With ``return_error`` a pair: the debiased effect, to which the standard
        error belongs, and the standard error (spread of W and noise of h), as in :meth:`interval`.
        """
        self._check_fitted()
        if return_error:
            found = self.interval(treatment)
            return found.value, found.standard_error
        encoded = self._encode_treatment(treatment)
        return self._means(encoded, even_choice(self.sample_, len(encoded)))

    def interval(self, treatment: Any, *, baseline: Any = None, level: float = 0.95) -> Interval:
        """Debiased mean outcome with standard errors and a confidence interval for every treatment by itself.

        With ``baseline`` (one treatment, or as many as there are) the same of the difference to it.

        The estimate is the mean of h(a, W) + q(A, V) (Y - h(A, W)), where q represents the average over W. It corrects
        errors of h that are constant, and in part (a penalty keeps it stable) those that are linear in (a, w, x), a
        multiple of h or, of at most six columns, quadratic, and what h gets wrong around a continuous treatment a
        whatever w is; it assumes that others are small. Far from the observed treatments it extrapolates.
        ``prudent.cmr._debias`` has the formulas.
        """
        self._check_fitted()
        check_level(level)
        encoded = self._encode_treatment(treatment)
        other = None if baseline is None else self._encode_treatment(baseline)
        values, errors, plug_in = [], [], []
        for scores, h in self._scores(encoded, other):
            value, error = self.correction_.mean(scores)
            values.append(value)
            errors.append(error)
            plug_in.append(h.mean(axis=0))
        stacked = [np.stack(part) for part in (values, errors, plug_in)]
        stake = shares = self._without_data(encoded)
        below = None if other is None else self._without_data(other)
        if shares is not None and below is not None:
            below = np.resize(below, len(encoded))
            shares, stake = np.maximum(shares, below), shares + below
        # One number per treatment and outcome, as the others.
        stake = None if stake is None else stake[:, None] * self.correction_.spread
        if stacked[0].shape[1] == 1:
            stacked = [part[:, 0] for part in stacked]
            stake = None if stake is None else stake[:, 0]
        return Interval.of(*stacked, level=level, n_units=self.correction_.n_units, without_data=shares, at_stake=stake)

    def _scores(self, treatment: np.ndarray, baseline: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Scores and bridge per row, for every treatment; differences where there is a baseline."""
        found = (
            (self.correction_.scores(rows, h), h)
            for rows, h in over_units(self.estimator_.predict, treatment, self.sample_)
        )
        if baseline is None:
            yield from found
            return
        _check_baseline(treatment, baseline)
        below = [
            (self.correction_.scores(rows, h), h)
            for rows, h in over_units(self.estimator_.predict, baseline, self.sample_)
        ]
        for number, (scores, h) in enumerate(found):
            scores_below, h_below = below[number % len(below)]
            yield scores - scores_below, h - h_below

    def _without_data(self, encoded: np.ndarray) -> np.ndarray | None:
        """Share of the average, for every treatment."""
        shares = [
            self.correction_.without_data(np.hstack([np.tile(a, (len(self.sample_), 1)), self.sample_]))
            for a in encoded
        ]
        return None if None in shares else np.array(shares, dtype=float)

    def contrast(self, treatment: Any, baseline: Any, *, return_error: bool = False) -> Any:
        """Mean outcome under ``treatment`` less that under ``baseline``.

        With ``return_error`` a pair: the debiased difference and its standard error, as in :meth:`interval`.
        """
        if return_error:
            found = self.interval(treatment, baseline=baseline)
            return found.value, found.standard_error
        self._check_fitted()
        above, below = self._encode_treatment(treatment), self._encode_treatment(baseline)
        _check_baseline(above, below)
        # Both over the same proxies: else part of the difference would be that of two samples.
        sample = even_choice(self.sample_, max(len(above), len(below)))
        return self._means(above, sample) - self._means(below, sample)

    def bridge(self, treatment: Any, proxy: Any, context: Any = None) -> np.ndarray:
        """h(a, w, x), shape (n,) or (n, outcomes). One row of an argument serves for all rows of the others."""
        self._check_fitted()
        given = {"treatment": treatment, "outcome_proxy": proxy}
        if "context" in self.roles_:
            if context is None:
                raise RoleError(f"This model needs a context with columns {self.roles_['context'].names}.")
            given["context"] = context
        elif context is not None and np.size(context):
            raise RoleError("This model was fitted without context, but a context was given. Leave it out.")
        parts = [
            self._compressed(name, self.roles_[name].encode(flatten_pictures(value))) for name, value in given.items()
        ]
        lengths = {len(part) for part in parts} - {1}
        if len(lengths) > 1:
            raise DataError(f"bridge needs equally many rows of every argument (or one), got {sorted(lengths)}.")
        values = self.estimator_.predict(beside(*parts))
        return values[:, 0] if values.shape[1] == 1 else values

    def diagnose(self) -> ProximalDiagnosis:
        """Strength of the proxies, nuisance fit and moment error; prints as a table.

        Its method ``warnings()`` lists what speaks against the roles or the fit; ``fit`` warns of the same.
        """
        self._check_fitted()
        return self.diagnosis_

    def moment_error(
        self,
        data: Any = None,
        *,
        outcome: Any = None,
        treatment: Any = None,
        outcome_proxy: Any = None,
        treatment_proxy: Any = None,
        context: Any = None,
        groups: Any = None,
    ) -> MomentError:
        """How far E[Y - h(A, W, X) | A, V, X] is from zero on rows that were not used in ``fit``.

        A frame with the columns of the fit, or arrays by role. It does not depend on the seed of the fit.
        """
        self._check_fitted()
        given = {
            "outcome": outcome,
            "treatment": treatment,
            "outcome_proxy": outcome_proxy,
            "treatment_proxy": treatment_proxy,
            "context": context,
        }
        matrices = encode_roles(self.roles_, data, {name: flatten_pictures(value) for name, value in given.items()})
        parts = {name: self._compressed(name, matrix) for name, matrix in matrices.items()}
        x = np.hstack([parts[name] for name in ("treatment", "outcome_proxy", "context") if name in parts])
        c = np.hstack([parts[name] for name in ("treatment", "treatment_proxy", "context") if name in parts])
        return self.estimator_.moment_error(parts["outcome"], x, c, groups=read_groups(data, groups, len(x)))

    def summary(self) -> str:
        """Roles, diagnostics and the effect at a few treatments with standard errors, as text."""
        self._check_fitted()
        from prudent.proximal._report import summarise

        return summarise(self)

    def plot_effect(self, ax: "Axes | None" = None, *, truth: Any = None, level: float = 0.95) -> "Axes":
        """Dose-response curve E[Y | do(a)] with pointwise intervals; ``truth(a)`` adds a dashed line.

        Categories, and numbers of which the data have at most ten, are shown as points with error bars.
        """
        self._check_fitted()
        from prudent.proximal._report import plot_effect

        return plot_effect(self, ax, truth=truth, level=level)

    def save(self, folder: str | Path) -> Path:
        """Write the model as ``model.json`` and ``weights.safetensors``; read it with :func:`prudent.load`.

        The folder holds the training rows: effects are averages over their proxies and contexts, and from what
        standard errors need, treatments and outcomes can be computed, too.
        """
        self._check_fitted()
        from prudent._storage import save_model

        report, arrays = self.estimator_.to_state()
        record = {
            "estimator": report,
            "roles": {name: role.to_json() for name, role in self.roles_.items()},
            "compression": {name: part.kept for name, part in self.compression_.items()},
            "diagnosis": self.diagnosis_.to_json(),
            "seed": int(self.seed),
            "compress": self.compress,
            "treatment_levels": self.treatment_levels_,
        }
        own = {"sample": self.sample_, "treatment_range": self.treatment_range_}
        for name, part in self.compression_.items():
            own |= {f"compression.{name}.mean": part.mean, f"compression.{name}.directions": part.directions}
        own |= self.correction_.to_arrays()
        arrays = {f"estimator.{name}": array for name, array in arrays.items()}
        return save_model(folder, "ProximalRegression", record, arrays | own)

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "ProximalRegression":
        """Rebuild from what :meth:`save` wrote."""
        from prudent.cmr import estimator_from_state

        model = cls(seed=record["seed"], compress=record["compress"])
        inner = {k.removeprefix("estimator."): v for k, v in arrays.items() if k.startswith("estimator.")}
        model.estimator_ = estimator_from_state(record["estimator"], inner)
        model.estimator = model.estimator_
        model.roles_ = {name: Role.from_json(r) for name, r in record["roles"].items()}
        model.compression_ = {
            name: Compression(arrays[f"compression.{name}.mean"], arrays[f"compression.{name}.directions"], kept)
            for name, kept in record["compression"].items()
        }
        model.sample_, model.treatment_range_ = arrays["sample"], arrays["treatment_range"]
        model.treatment_levels_ = record["treatment_levels"]
        model.correction_ = Correction.from_arrays(arrays)
        model.diagnosis_ = ProximalDiagnosis.from_json(record["diagnosis"])
        return model

    def _check_fitted(self) -> None:
        if not hasattr(self, "estimator_"):
            raise NotFittedError("This ProximalRegression is not fitted. Call fit(...) first, or prudent.load(folder).")

    def _prepared(self, parts: dict[str, np.ndarray], *, is_picture: bool) -> Any:
        # A copy: one estimator object may serve several models.
        estimator: Any = DMLCMR() if self.estimator is None else clone(self.estimator)
        if isinstance(estimator, DMLCMR) and estimator.start is None:
            # The outcome proxy says much about the outcome that (A, V) does not.
            estimator = estimator.set_params(start="regression")
        if isinstance(estimator, DMLCMR) and estimator.network is None:
            from prudent.nn import TabularSpec

            # Effects are averages over pairs (a, w) of which many never occur together. A network of tanh units levels
            # off where there are no data, others continue the trend; waves (for the context only) would go on waving.
            # Pictures that are asked about look like those seen, and are harder to learn from with tanh units.
            first = parts["treatment"].shape[1] + parts["outcome_proxy"].shape[1]
            embed = tuple(first + j for j in numeric_columns(parts["context"]))
            activation = "silu" if is_picture else "tanh"
            estimator = estimator.set_params(network=TabularSpec(activation=activation, dropout_rate=0.0, embed=embed))
        return estimator

    def _compressions(self, matrices: dict[str, np.ndarray]) -> dict[str, Compression]:
        if not self.compress:
            return {}
        return {
            name: Compression.of(matrices[name], count, int(self.seed))
            for name, count in COMPONENTS.items()
            if matrices[name].shape[1] > WIDE
        }

    def _compressed(self, name: str, matrix: np.ndarray) -> np.ndarray:
        return self.compression_[name](matrix) if name in self.compression_ else matrix

    def _encode_treatment(self, treatment: Any) -> np.ndarray:
        encoded = self.roles_["treatment"].encode(flatten_pictures(treatment))
        outside = self.roles_["treatment"].outside(self.treatment_range_, encoded)
        if outside is not None:
            warnings.warn(outside, stacklevel=3)
        return self._compressed("treatment", encoded)

    def _means(self, encoded: np.ndarray, sample: np.ndarray) -> np.ndarray:
        values = mean_over_others(self.estimator_.pairs, encoded, sample)
        return values[:, 0] if values.shape[1] == 1 else values


def flatten_pictures(value: Any) -> Any:
    """Arrays (n, height, width) or (n, height, width, channels) as rows of pixels; anything else unchanged."""
    if isinstance(value, np.ndarray) and value.ndim in (3, 4):
        return value.reshape(len(value), -1)
    return value


def _check_baseline(treatment: np.ndarray, baseline: np.ndarray) -> None:
    if len(baseline) not in (1, len(treatment)):
        raise DataError(f"baseline needs one treatment or {len(treatment)}, got {len(baseline)}.")


def _freedom(role: Role) -> int:
    """How many numbers a role's columns stand for: a category of L levels for L - 1."""
    return sum(column.width - (column.levels is not None) for column in role.columns)


def _encoded_names(role: Role, width: int) -> tuple[str, ...]:
    names = role.encoded_names
    return names if len(names) == width else tuple(f"component {j}" for j in range(width))


def _one_or_count(role: Role) -> str:
    return role.names[0] if len(role.names) == 1 else f"{len(role.names)} columns of the {role.title.lower()}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} others"
