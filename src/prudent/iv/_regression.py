"""Instrumental-variable regression: f(a, c) = E[Y | do(a), c] from a confounded table.

With outcome Y, action A, context C and instruments Z the restriction is E[Y - f(A, C) | Z, C] = 0; any moment
estimator solves it.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import clone

from prudent._roles import Role, encode_roles, read_groups
from prudent.cmr import DMLCMR, ImageFeatures, MomentError, MomentEstimator, TwoStageLeastSquares
from prudent.cmr._arrays import as_matrix
from prudent.cmr._base import MIN_UNITS, check_seed
from prudent.cmr._debias import MAX_CURVED, Correction, CorrectionSums
from prudent.cmr._names import check_estimator
from prudent.cmr._neural import embed_beside_image
from prudent.cmr._pairs import beside, evenly
from prudent.cmr._report import WEAK_F
from prudent.cmr._support import Support
from prudent.cmr._twostage import TwoStageReport
from prudent.errors import DataError, NotFittedError, RoleError
from prudent.iv._diagnosis import DETERMINED, Diagnosis
from prudent.iv._policy import Policy
from prudent.iv._table import NEARLY_THE_ACTION, read_table
from prudent.iv._value import PolicyValue, policy_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of many rows so many tell where there are data.
SUPPORT_ROWS = 10_000


class IVRegression:
    """Causal effect of an action on an outcome, identified by instruments.

    Parameters
    ----------
    estimator : MomentEstimator, default=DMLCMR(n_folds=10)
        How the moment restriction is solved.
    seed : int, default=0
        Decides every random choice.

    Examples
    --------
    >>> from prudent import IVRegression, datasets
    >>> from prudent.cmr import DMLCMR
    >>> data = datasets.make_demand(1000, seed=0)
    >>> model = IVRegression(DMLCMR(n_folds=2), seed=0).fit(**data.roles())   # doctest: +SKIP
    """

    def __init__(self, estimator: MomentEstimator | None = None, *, seed: int = 0):
        self.estimator = estimator
        self.seed = seed

    def __repr__(self) -> str:
        state = "fitted" if hasattr(self, "estimator_") else "not fitted"
        return f"IVRegression({self.estimator or DMLCMR()}, seed={self.seed}), {state}"

    def fit(
        self,
        data: Any = None,
        *,
        outcome: Any,
        action: Any,
        instruments: Any,
        context: Any = None,
        groups: Any = None,
        images: Any = None,
    ) -> Self:
        """Fit on a pandas or polars frame with column names per role, or on arrays per role.

        Text, boolean and categorical columns are encoded; a categorical action is discrete. ``groups`` names the unit
        of every row (a person, a shop) where rows of one unit belong together. ``images=(height, width)`` says that
        the last columns of the context are the pixels of an image; every estimator then sees a few features of it
        (:class:`prudent.cmr.ImageFeatures`). Without it pixels are columns like others, as ``nn.ImageSpec`` wants them.
        """
        check_seed(self.seed)
        check_estimator(self.estimator, "Regressors for the outcome go into DMLCMR(outcome_model=...).")
        table = read_table(
            data,
            outcome=outcome,
            action=action,
            instruments=instruments,
            context=context,
            groups=groups,
            images=images,
        )
        roles, y, x, c, groups, image = table.roles, table.y, table.x, table.c, table.groups, table.image
        # A copy: one estimator object may serve several models.
        estimator: Any = DMLCMR() if self.estimator is None else clone(self.estimator)
        if isinstance(getattr(estimator, "discrete", None), str) and estimator.discrete == "auto":
            estimator = estimator.set_params(discrete=tuple(sorted(table.discrete)))
        if image is not None:
            estimator = embed_beside_image(estimator, x, c, image.n_features, roles["action"].width)
        estimator = estimator.fit(y, x, c, seed=int(self.seed), groups=groups)
        # What the user says of the columns counts, where the estimator takes it.
        discrete = set(getattr(getattr(estimator, "report_", None), "discrete", table.discrete))
        diagnosis = Diagnosis.of(estimator, table, discrete=discrete, seed=int(self.seed))
        report = getattr(estimator, "report_", None)
        if isinstance(report, TwoStageReport) and image is None:
            names = [name for role in ("action", "context") if role in roles for name in roles[role].encoded_names]
            estimator.report_ = report.with_names(names, roles["outcome"].names)
        correction = None
        if groups is None or len(np.unique(groups)) >= MIN_UNITS:
            correction = Correction.of(
                y,
                estimator.terms(x),
                estimator.instrument_terms(c),
                estimator.predict(x),
                seed=int(self.seed),
                groups=groups,
                n_actions=roles["action"].width,
                projects=isinstance(estimator, TwoStageLeastSquares),
            )
        # Only now: a fit that fails leaves an earlier one as it was.
        self.estimator_, self.roles_, self.image_, self.diagnosis_ = estimator, roles, image, diagnosis
        self.action_range_ = np.stack([table.action.min(axis=0), table.action.max(axis=0)])
        self.sums_ = None if correction is None else correction.in_sums()
        # Kept in memory for averages over observed contexts; never written to disk with the model.
        self.context_, self.action_, self.correction_, self.support_ = table.context, table.action, correction, None
        if self.diagnosis_.weakest_f is not None and self.diagnosis_.weakest_f < WEAK_F:
            warnings.warn(
                f"weak instrument: {self.diagnosis_.strength_measure} = {self.diagnosis_.weakest_f:.1f}, below "
                f"{WEAK_F:.0f}. The effect may be far off; see diagnose().",
                stacklevel=2,
            )
        least = min(self.diagnosis_.partial_r2, default=0.0)
        if least >= DETERMINED and table.likeness <= NEARLY_THE_ACTION:
            warnings.warn(
                f"the instruments determine the action (partial R2 {least:.4f}): they are as confounded as it is, and "
                "the effect is that of a plain regression. Was an instrument made from the action?",
                stacklevel=2,
            )
        return self

    def effect(self, action: Any, context: Any = None) -> np.ndarray:
        """f(a, c) = E[Y | do(a), c], shape (n,) or (n, outcomes). One action or one context serves for all rows."""
        self._check_fitted()
        values = self.estimator_.predict(self._inputs(action, context))
        return values[:, 0] if values.shape[1] == 1 else values

    def contrast(self, action: Any, baseline: Any, context: Any = None) -> np.ndarray:
        """Effect of ``action`` less that of ``baseline`` in the same contexts."""
        return self.effect(action, context) - self.effect(baseline, context)

    def policy(self, actions: Any = None, *, outcome: int | str = 0, minimise: bool = False) -> Policy:
        """The policy that chooses the best action for a context.

        Parameters
        ----------
        actions : (low, high) tuple, or list of actions, optional
            A range of a scalar action (two numbers in a *tuple*), or discrete candidates (a *list*). Default: the
            levels of a categorical or discrete action, else the range seen in the data.
        outcome : int or str
            Which outcome is to be made large, by number or name.
        minimise : bool
            Make it small instead.
        """
        self._check_fitted()
        return Policy.over(self, actions, outcome=outcome, minimise=minimise)

    def policy_value(
        self,
        policy: Any,
        context: Any = None,
        *,
        baseline: Any = None,
        outcome: int | str | None = None,
        level: float = 0.95,
    ) -> PolicyValue:
        """Mean outcome if a policy is followed in contexts like these (default: those of the training data).

        The estimate is the mean of f(policy(c), c), debiased: q(Z, C) (Y - f(A, C)) is averaged over the training rows
        and added, where q represents the mean. It corrects errors of f that are constant, and in part (a penalty keeps
        it stable) those that are linear in (a, c), a multiple of f or quadratic (of more than six columns: products
        with the action); it assumes that others are small. ``prudent.cmr._debias`` has the formulas. Its standard error
        is that of f and of the contexts together; a single context has no spread, and its value rests wholly on the
        assumption. A policy that was chosen by the same f tends to a value that is too high: what is best by the
        estimate is where the estimate errs upwards.

        Parameters
        ----------
        policy : Policy, callable, or an action
            A callable takes encoded contexts (categories as indicator columns) and gives one action for each. An
            action is taken in every context.
        context : optional
            Contexts to average over, as rows that are independent of each other and of those of the fit.
        baseline : Policy, callable, or an action, optional
            Another policy: the value is then the difference to it, with a standard error of its own.
        outcome : int, optional
            Default: the one that the policy is about.
        level : float
            Of the interval.
        """
        self._check_fitted()
        return policy_value(self, policy, context, baseline=baseline, outcome=outcome, level=level)

    def diagnose(self) -> Diagnosis:
        """Instrument strength, nuisance fit and out-of-fold moment error; prints as a table."""
        self._check_fitted()
        return self.diagnosis_

    def moment_error(
        self,
        data: Any = None,
        *,
        outcome: Any = None,
        action: Any = None,
        instruments: Any = None,
        context: Any = None,
        groups: Any = None,
    ) -> MomentError:
        """How far E[Y - f(A, C) | Z, C] is from zero on rows that were not used in ``fit``, with a standard error.

        A frame with the columns of the fit, or arrays by role. Every estimator has this number, so that models of
        different kinds can be compared by it on the same rows; it does not depend on the seed of the fit.
        """
        self._check_fitted()
        given = {"outcome": outcome, "action": action, "instruments": instruments, "context": context}
        parts = encode_roles(self.roles_, data, given)
        seen = parts.get("context", np.empty((len(parts["outcome"]), 0)))
        seen = seen if self.image_ is None else self.image_.replace_last(seen)
        x, c = np.hstack([parts["action"], seen]), np.hstack([parts["instruments"], seen])
        return self.estimator_.moment_error(parts["outcome"], x, c, groups=read_groups(data, groups, len(x)))

    def summary(self) -> str:
        """Roles, diagnostics and the average effect over the observed contexts, as text."""
        self._check_fitted()
        from prudent.iv._report import summarise

        return summarise(self)

    def plot_effect(self, ax: "Axes | None" = None, *, context: Any = None, truth: Any = None) -> "Axes":
        """Average effect against the action, over the given contexts (default: those of the training data).

        ``truth`` adds a dashed line: a ``Design``, ``truth(action, context)``, averaged over the same contexts
        (encoded: categories as indicator columns), or ``truth(action)``. With several outcomes it may give one column
        for each.
        """
        self._check_fitted()
        from prudent.iv._report import plot_effect

        return plot_effect(self, ax, context=context, truth=truth)

    def save(self, folder: str | Path) -> Path:
        """Write the model as ``model.json`` and ``weights.safetensors``; read it with :func:`prudent.load`."""
        self._check_fitted()
        from prudent._storage import save_model

        report, arrays = self.estimator_.to_state()
        record = {
            "estimator": report,
            "roles": {name: role.to_json() for name, role in self.roles_.items()},
            "diagnosis": self.diagnosis_.to_json(),
            "seed": int(self.seed),
            "image_shape": None if self.image_ is None else self.image_.shape,
        }
        arrays["action_range"] = self.action_range_
        arrays |= {} if self.sums_ is None else self.sums_.to_arrays()
        if self.image_ is not None:
            arrays |= {"image_mean": self.image_.mean, "image_components": self.image_.components}
        return save_model(folder, "IVRegression", record, arrays)

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "IVRegression":
        """Rebuild from what :meth:`save` wrote."""
        from prudent.cmr import estimator_from_state

        model = cls(seed=record["seed"])
        model.action_range_ = arrays.pop("action_range")
        model.image_ = None
        if record.get("image_shape"):
            mean, components = arrays.pop("image_mean"), arrays.pop("image_components")
            model.image_ = ImageFeatures(tuple(record["image_shape"]), mean, components)
        model.sums_ = CorrectionSums.from_arrays(arrays) if "sums.gram" in arrays else None
        own = {name: array for name, array in arrays.items() if not name.startswith("sums.")}
        model.estimator_ = estimator_from_state(record["estimator"], own)
        model.estimator = model.estimator_
        model.roles_ = {name: Role.from_json(r) for name, r in record["roles"].items()}
        model.diagnosis_ = Diagnosis.from_json(record["diagnosis"])
        return model

    def _check_fitted(self) -> None:
        if not hasattr(self, "estimator_"):
            raise NotFittedError("This IVRegression is not fitted. Call fit(...) first, or prudent.load(folder).")

    def _inputs(self, action: Any, context: Any) -> np.ndarray:
        a = self.roles_["action"].encode(action)
        if "context" not in self.roles_:
            if context is not None and np.size(context):
                raise RoleError("This model was fitted without context, but a context was given. Leave it out.")
            return a
        if context is None:
            raise RoleError(
                f"This model needs a context with columns {self.roles_['context'].names}. Give context=..., or use "
                "plot_effect() and summary() for averages over the observed contexts."
            )
        return self._beside(a, self._encode_context(context))

    def _beside(self, a: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Rows (action, context) from encoded ones."""
        if len(a) != len(c) and 1 not in (len(a), len(c)):
            raise DataError(f"action and context must have equally many rows (or one), got {len(a)} and {len(c)}.")
        return beside(a, c)

    def _support(self) -> Support | None:
        """Where the training rows are, found when first asked for; None of a loaded model and of many columns."""
        inputs = [self.roles_[name] for name in ("action", "context") if name in self.roles_]
        n_columns, width = sum(len(role.columns) for role in inputs), sum(role.width for role in inputs)
        if not hasattr(self, "context_") or n_columns > MAX_CURVED or width > 2 * MAX_CURVED:
            return None
        if self.support_ is None:
            self.support_ = Support.of(evenly(np.hstack([self.action_, self.context_]), SUPPORT_ROWS))
        return self.support_

    def _encode_context(self, context: Any) -> np.ndarray:
        role, image = self.roles_["context"], self.image_
        width = role.width if image is None else role.width - image.n_pixels + image.n_features
        # Callables that serve as policies get encoded contexts, and may ask for effects in them. Such an array is
        # recognised by its width, unless raw ones are as wide.
        if width != len(role.columns) and np.ndim(context) == 2 and np.shape(context)[1] == width:
            return as_matrix("Context", context)
        encoded = role.encode(context)
        return encoded if image is None else image.replace_last(encoded)

    def _contexts(self, context: Any) -> np.ndarray:
        if "context" not in self.roles_:
            if context is not None and np.size(context):
                raise RoleError("This model was fitted without context, but a context was given. Leave it out.")
            return np.empty((1, 0))
        if context is not None:
            return self._encode_context(context)
        if not hasattr(self, "context_"):
            raise RoleError(
                "A loaded model does not carry the training contexts. Give context=... with the contexts to average "
                "over."
            )
        return self.context_
