"""Gaussian-process regression with a product kernel, tuned by marginal likelihood and solved on landmarks.

k(u, u') = plain(front) + [constant + linear + curved](front) x product of k_j(side columns)

The front columns are those whose effect is wanted outside the data as well (actions, instruments): their linear part
extrapolates. It has an origin, so that lines which the side columns turn about a point change in level and slope
together; ``plain`` is a constant and linear part that no side column changes. Each numeric side column has a rational
quadratic kernel with its own scale and shape. Each category has a correlation between its levels and an amplitude for
every level, so that levels may share a function and differ in its size. The inputs of a row may be a law instead of a
point: then k is averaged over the front columns, E k(X, X'), which is what E[f(X)|c] needs.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, get_lapack_funcs, solve_triangular
from scipy.optimize import minimize

from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._base import MIN_UNITS
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._pairs import beside, pair_products

# With more numeric side columns than this, one length-scale serves for all of them.
MAX_SCALES = 20
# The likelihood is summed over blocks of rows: its cost grows with the cube of a block.
BLOCK_ROWS, MAX_BLOCKS, MAX_SMALL_BLOCKS = 500, 4, 40
# Factors of the penalty among which held-out groups choose, where rows share noise.
SHARED_NOISE = 2.0 ** np.arange(9)
# Parameters that are no column's, and the places of two of them: amplitudes of the linear and the curved part.
N_GLOBAL, LINEAR, CURVED = 5, 1, 2
# Origins of lines, in standard units: where the search may go, and where it starts.
MAX_ORIGIN, START_ORIGIN, TRIAL_STEPS = 10.0, 4.0, 12
BLOCK_CELLS = 2_000_000
# Of a kernel matrix in single precision, relative to its diagonal.
ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Layout:
    """Front columns, groups of numeric side columns that share a scale, and the indicator columns of each category."""

    front: tuple[int, ...]
    numeric: tuple[tuple[int, ...], ...]
    categories: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, array: Matrix, front: list[int]) -> "Layout":
        """Sort the columns that are not in front; neighbouring indicators that sum to one are one category.

        A level that no row has is part of its category where it stands between or before others.
        """
        numeric: list[tuple[int, ...]] = []
        categories: list[tuple[int, ...]] = []
        j, n_columns = 0, array.shape[1]
        is_indicator = [j not in front and bool(np.isin(array[:, j], (0.0, 1.0)).all()) for j in range(n_columns)]
        while j < n_columns:
            end = _category_end(array, is_indicator, j)
            varies = j not in front and np.ptp(array[:, j]) > 0
            if end > j + 1:
                categories.append(tuple(range(j, end)))
            elif varies:
                (categories if is_indicator[j] else numeric).append((j,))
            j = max(end, j + 1)
        if len(numeric) > MAX_SCALES:
            numeric = [tuple(j for (j,) in numeric)]
        return cls(tuple(front), tuple(numeric), tuple(categories))

    def to_json(self) -> dict[str, list]:
        """Plain record."""
        return {
            "front": list(self.front),
            "numeric": [list(group) for group in self.numeric],
            "categories": [list(category) for category in self.categories],
        }

    @classmethod
    def from_json(cls, record: dict[str, list]) -> "Layout":
        """From the record of :meth:`to_json`."""
        numeric, categories = (tuple(tuple(g) for g in record[name]) for name in ("numeric", "categories"))
        return cls(tuple(record["front"]), numeric, categories)

    def levels(self, array: Matrix) -> list[np.ndarray]:
        """Indicators of all levels of each category; a single indicator stands for two levels."""
        return [
            array[:, list(c)] if len(c) > 1 else np.hstack([1 - array[:, list(c)], array[:, list(c)]])
            for c in self.categories
        ]

    def split(self, theta: np.ndarray) -> "Parameters":
        """The parameters by name, from their vector of logarithms (logits of correlations, origins as they are)."""
        n_front, n_numeric = len(self.front), len(self.numeric)
        sizes = [N_GLOBAL, n_front, n_front, 2 * n_numeric, *(1 + max(2, len(c)) for c in self.categories)]
        start, scales, origins, shapes, *categories = np.split(theta, np.cumsum(sizes))[: len(sizes)]
        return Parameters(
            np.exp(start),
            np.exp(scales),
            origins,
            np.exp(shapes.reshape(-1, 2)),
            [(1 / (1 + np.exp(-part[0])), np.exp(part[1:])) for part in categories],
        )

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Centre and precision of the prior of the parameters; the search starts at the centre."""
        centre = [0.0, -2.0, -2.0, -1.0, 0.0, *[0.3] * len(self.front), *[0.0] * len(self.front)]
        precision = [0.04] * len(centre)
        # Slopes that change with the context extrapolate far: small, unless the data ask for them.
        precision[1:3] = [0.2, 0.2]
        for group in self.numeric:
            # A typical distance grows with the number of columns in the group.
            centre += [-0.3 + 0.5 * float(np.log(len(group))), 0.0]
            precision += [0.04, 0.1]
        for category in self.categories:
            n_levels = max(2, len(category))
            centre += [2.0, *[0.0] * n_levels]
            precision += [0.1, *[1.0] * n_levels]
        return np.array(centre), np.array(precision)


def _category_end(array: Matrix, is_indicator: list[bool], start: int) -> int:
    """Where the shortest category that starts at a column ends; ``start`` if there is none."""
    total = np.zeros(len(array))
    for j in range(start, array.shape[1]):
        if not is_indicator[j]:
            return start
        total += array[:, j]
        if total.max() > 1:
            return start
        # A column of ones is a constant, not a category of one level.
        if total.min() == 1:
            return j + 1 if np.ptp(array[:, start : j + 1], axis=0).any() else start
    return start


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Amplitudes (constant, linear, curved, noise, plain), front, (scale, shape), (correlation, amplitudes)."""

    amplitudes: np.ndarray
    front_scales: np.ndarray
    origins: np.ndarray
    numeric: np.ndarray
    categories: list[tuple[float, np.ndarray]]


def distances(left: Matrix, right: Matrix) -> np.ndarray:
    """Squared distance of every row of ``left`` to every row of ``right``."""
    if left.shape[1] == 1:
        return (left - right.T) ** 2
    squares = np.sum(left**2, axis=1)[:, None] + np.sum(right**2, axis=1) - 2 * left @ right.T
    return np.maximum(squares, 0.0)


@dataclasses.dataclass(frozen=True)
class ProductKernel:
    """The kernel with its parameters, as one vector of logarithms."""

    layout: Layout
    theta: np.ndarray

    @property
    def noise(self) -> float:
        """Variance of the noise in the units of the target that the kernel was tuned on."""
        return float(np.exp(self.theta[3]))

    def side(self, left: Matrix, right: Matrix) -> np.ndarray:
        """The factor of the side columns."""
        parameters = self.layout.split(self.theta)
        product = np.ones((len(left), len(right)))
        for (scale, shape), group in zip(parameters.numeric, self.layout.numeric, strict=True):
            distance = distances(left[:, group], right[:, group])
            product *= (1 + distance / (2 * shape * scale**2)) ** -shape
        for (correlation, amplitude), first, second in zip(
            parameters.categories, self.layout.levels(left), self.layout.levels(right), strict=True
        ):
            same = first @ second.T
            product *= (correlation + (1 - correlation) * same) * np.outer(first @ amplitude, second @ amplitude)
        return product

    def mean_between(self, atoms: np.ndarray, weight: np.ndarray, left: Matrix, right: Matrix) -> np.ndarray:
        """E k(X, right): front columns of X follow ``atoms (n, q, d)`` with ``weight (n, q)``, the others ``left``."""
        result = np.empty((len(left), len(right)))
        step = max(1, BLOCK_CELLS // len(right))
        for start in range(0, len(left), step):
            rows = slice(start, start + step)
            result[rows] = self._block(atoms[rows], weight[rows], left[rows], right)
        return result

    def between(self, left: Matrix, right: Matrix) -> np.ndarray:
        """k of every row of ``left`` with every row of ``right``."""
        atoms = left[:, list(self.layout.front)][:, None, :]
        return self.mean_between(atoms, np.ones((len(left), 1)), left, right)

    def pairs(
        self, scaler: Scaler, first: Matrix, others: Matrix, right: Matrix, weight: np.ndarray
    ) -> np.ndarray | None:
        """k of every row of ``first`` beside every row of ``others`` with ``right``, times ``weight`` (right, targets).

        The first two are in raw units, which ``scaler`` makes standard. Gives (first, others, targets); None where
        both have columns in one factor of k.
        """
        layout, width = self.layout, first.shape[1]
        in_front = {j < width for j in layout.front}
        in_side = {j < width for group in (*layout.numeric, *layout.categories) for j in group}
        if len(in_front) != 1 or in_front & in_side:
            return None
        rows = [standard(scaler, part) for part in (beside(first, others[:1]), beside(first[:1], others))]
        front_rows, side_rows = rows if in_front == {True} else reversed(rows)
        atoms = front_rows[:, list(layout.front)][:, None, :]
        plain, front = self._front(atoms, np.ones((len(atoms), 1)), right)
        values = pair_products(front, self.side(side_rows, right), weight) + (plain @ weight)[:, None]
        return values if in_front == {True} else values.swapaxes(0, 1)

    def _block(self, atoms: np.ndarray, weight: np.ndarray, left: Matrix, right: Matrix) -> np.ndarray:
        plain, front = self._front(atoms, weight, right)
        return plain + self.side(left, right) * front

    def _front(self, atoms: np.ndarray, weight: np.ndarray, right: Matrix) -> tuple[np.ndarray, np.ndarray]:
        """The part that is linear in the front columns alone, and the factor of the front columns."""
        parameters = self.layout.split(self.theta)
        constant, linear, curved, _, plain = parameters.amplitudes
        at = right[:, list(self.layout.front)]
        at_scaled = at / parameters.front_scales
        mean = np.einsum("nq,nqd->nd", weight, atoms)
        front = constant + linear * (mean - parameters.origins) @ (at - parameters.origins).T
        for q in range(atoms.shape[1] if curved else 0):
            near = np.exp(-0.5 * distances(atoms[:, q] / parameters.front_scales, at_scaled))
            front += curved * weight[:, q, None] * near
        return plain * (1 + mean @ at.T), front


def tune_kernel(
    layout: Layout,
    side: Matrix,
    mean: Matrix,
    variance: Matrix,
    target: Matrix,
    *,
    rng: np.random.Generator,
    groups: np.ndarray | None,
    sharpest: np.ndarray | None = None,
    given: dict[int, float] | None = None,
    max_steps: int = 30,
) -> ProductKernel:
    """Kernel parameters of largest marginal likelihood (with a weak prior that keeps them finite).

    ``mean`` and ``variance`` (n, front) describe the front columns as independent normal laws, for which E k(X, X')
    has a closed form; ``side`` holds all columns, of which the layout's groups are read. ``target`` is standardised.
    ``groups`` name dependent rows; ``sharpest`` has the smallest length-scale of every front column; ``given``
    parameters, by their place, are not searched.
    """
    rows = _likelihood_rows(len(target), groups, rng)
    blocks = [_Block(layout, side[r], mean[r], variance[r], target[r]) for r in rows]
    start, precision = layout.start()

    def climb(begin: np.ndarray, chosen: list[_Block], n_steps: int) -> Any:
        def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = 0.5 * np.sum(precision * (theta - start) ** 2), precision * (theta - start)
            for block in chosen:
                part, gradient = block.negative_likelihood(theta)
                value, slope = value + part, slope + gradient
            return value, slope

        options = {"maxiter": n_steps, "ftol": 1e-6}
        return minimize(objective, begin, jac=True, method="L-BFGS-B", bounds=limits, options=options)

    limits = [(s - 5.0, s + 5.0) for s in start]
    origins = slice(N_GLOBAL + len(layout.front), N_GLOBAL + 2 * len(layout.front))
    limits[origins] = [(-MAX_ORIGIN, MAX_ORIGIN)] * len(layout.front)
    for place, scale in enumerate([] if sharpest is None else sharpest, N_GLOBAL):
        low, high = limits[place]
        limits[place] = (float(np.clip(np.log(max(scale, 1e-9)), low, high - 1.0)), high)
    for place, value in (given or {}).items():
        start[place], limits[place] = value, (value, value)
    begin = start
    if layout.front and (layout.numeric or layout.categories):
        # The likelihood has a hill for each side of the data on which the origin may lie: climb a little on every one.
        trials, n_first = [], 1
        while n_first < len(blocks) and sum(map(len, rows[:n_first])) < BLOCK_ROWS:
            n_first += 1
        for place in (0.0, -START_ORIGIN, START_ORIGIN):
            moved = start.copy()
            moved[origins] = place
            trials.append(climb(moved, blocks[:n_first], TRIAL_STEPS))
        begin = min(trials, key=lambda trial: trial.fun).x
    return ProductKernel(layout, climb(begin, blocks, max_steps).x)


def _likelihood_rows(n: int, groups: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows of the blocks whose likelihoods are added, with at most one row of every group.

    The likelihood takes noise to be independent: of rows that share theirs it would learn that there is hardly any.
    """
    order = rng.permutation(n)
    unit = np.arange(n) if groups is None else np.unique(groups[order], return_inverse=True)[1].reshape(-1)
    by_unit = np.argsort(unit, kind="stable")
    first = np.searchsorted(unit[by_unit], unit[by_unit])
    layer = np.empty(n, dtype=int)
    layer[by_unit] = np.arange(n) - first
    blocks = []
    for number in range(layer.max() + 1):
        rows = order[layer == number]
        if blocks and len(rows) < 2:
            # A row alone tells nothing of how rows vary together.
            break
        n_blocks = int(np.clip(len(rows) // BLOCK_ROWS, 1, MAX_BLOCKS))
        blocks += np.array_split(rows[: n_blocks * BLOCK_ROWS], n_blocks)
        n_rows = sum(map(len, blocks))
        if n_rows >= MAX_BLOCKS * BLOCK_ROWS or len(blocks) >= MAX_SMALL_BLOCKS:
            break
    return blocks


class _Block:
    """Marginal likelihood of some rows, with its gradient."""

    def __init__(
        self, layout: Layout, side: Matrix, mean: Matrix, variance: Matrix, target: Matrix, dtype: type = np.float32
    ):
        # Single precision for the entries: they cost more than the factorisation, which stays in double precision.
        self.layout, self.target, self.dtype = layout, target, dtype
        side, mean, variance = (part.astype(dtype) for part in (side, mean, variance))
        self.mean, self.plain = mean, 1 + mean @ mean.T
        self.apart = [(mean[:, d, None] - mean[:, d]) ** 2 for d in range(mean.shape[1])]
        self.spread = [variance[:, d, None] + variance[:, d] for d in range(mean.shape[1])]
        self.distance = [distances(side[:, g], side[:, g]) for g in layout.numeric]
        self.level = layout.levels(side)
        self.same = [level @ level.T for level in self.level]

    def negative_likelihood(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """-log p(target) and its gradient in ``theta``."""
        n = len(self.target)
        parameters = self.layout.split(theta.astype(self.dtype))
        constant, linear, curved, noise, plain = parameters.amplitudes
        near, near_slopes = np.ones((n, n), self.dtype), []
        for scale, apart, spread in zip(parameters.front_scales**2, self.apart, self.spread, strict=True):
            wide = scale + spread
            near *= np.sqrt(scale / wide) * np.exp(-0.5 * apart / wide)
            near_slopes.append(spread / wide + apart * scale / wide**2)
        side, side_slopes = np.ones((n, n), self.dtype), []
        for (scale, shape), distance in zip(parameters.numeric, self.distance, strict=True):
            base = 1 + distance / (2 * shape * scale**2)
            log_base = np.log(base)
            side *= np.exp(-shape * log_base)
            side_slopes += [distance / scale**2 / base, -shape * log_base + distance / (2 * scale**2) / base]
        for (correlation, amplitude), level, same in zip(parameters.categories, self.level, self.same, strict=True):
            mixed = correlation + (1 - correlation) * same
            size = level @ amplitude
            side *= mixed * np.outer(size, size)
            side_slopes += [correlation * (1 - correlation) * (1 - same) / mixed]
        centred = self.mean - parameters.origins
        line = centred @ centred.T
        product = side * (constant + linear * line + curved * near)
        kernel = (product + plain * self.plain).astype(float)
        diagonal = np.diag_indices(n)
        kernel[diagonal] += noise + 1e-8
        factor, jitter = None, ROUNDING * float(np.mean(kernel[diagonal]))
        for _ in range(8):
            try:
                factor = cholesky(kernel, lower=True, check_finite=False)
                break
            except LinAlgError:
                # Noise below the rounding errors of the entries. A wall here would end the line search where it stands.
                kernel[diagonal] += jitter
                jitter *= 10
        if factor is None:
            return 1e10, np.zeros_like(theta)
        # From the factor at a third of the cost of solving for every column.
        (invert,) = get_lapack_funcs(("potri",), (factor,))
        inverse = invert(factor, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        solved = inverse @ self.target
        k = self.target.shape[1]
        value = 0.5 * np.sum(self.target * solved) + k * np.sum(np.log(np.diag(factor)))
        weight = (0.5 * (k * inverse - solved @ solved.T)).astype(self.dtype)
        on_front, on_side = weight * side, weight * product
        slope = [
            constant * on_front.sum(),
            linear * np.sum(on_front * line),
            curved * np.sum(on_front * near),
            noise * np.trace(weight),
            plain * np.sum(weight * self.plain),
        ]
        on_near = curved * on_front * near
        slope += [np.sum(on_near * s) for s in near_slopes]
        # d/do (m - o)(m' - o), summed over a symmetric matrix.
        slope += list(-2 * linear * on_front.sum(axis=1) @ centred)
        n_numeric = 2 * len(self.layout.numeric)
        slope += [np.sum(on_side * s) for s in side_slopes[:n_numeric]]
        rows = on_side.sum(axis=1)
        for correlation_slope, level in zip(side_slopes[n_numeric:], self.level, strict=True):
            # Rows have one level each, so the logarithm of a level's amplitude enters their row and column once.
            slope += [np.sum(on_side * correlation_slope), *(2 * level.T @ rows)]
        return float(value), np.array(slope, dtype=float)


def landmark_map(kernel: ProductKernel, landmarks: Matrix) -> np.ndarray:
    """Matrix W for which ``kernel.between(u, landmarks) @ W`` has independent unit-variance coefficients (Nystroem)."""
    gram = kernel.between(landmarks, landmarks)
    gram[np.diag_indices_from(gram)] += 1e-7 * np.trace(gram) / len(gram)
    return solve_triangular(cholesky(gram, lower=True), np.eye(len(gram)), lower=True).T


def ridge(gram: np.ndarray, moment: np.ndarray, penalty: float) -> np.ndarray:
    """(gram + penalty I)^-1 moment."""
    return cho_solve(cho_factor(gram + penalty * np.eye(len(gram)), lower=True), moment)


class GaussianProcess:
    """Regression of standardised targets on raw columns: parameters tuned once, coefficients per set of rows."""

    def __init__(self, front: list[int], *, n_landmarks: int, rng: np.random.Generator):
        self.front, self.n_landmarks, self.rng = front, n_landmarks, rng

    def prepare(self, inputs: Matrix, target: Matrix, groups: np.ndarray | None) -> "GaussianProcess":
        """Tune the kernel, and compute features of all rows; ``groups`` name dependent ones."""
        self.layout = Layout.of(inputs, self.front)
        self.scaler, self.target_scaler = column_scaler(inputs), Scaler.of(target)
        u = standard(self.scaler, inputs)
        self.target = standard(self.target_scaler, target)
        front = u[:, list(self.layout.front)]
        self.kernel = tune_kernel(self.layout, u, front, np.zeros_like(front), self.target, rng=self.rng, groups=groups)
        chosen = self.rng.permutation(len(u))[: self.n_landmarks]
        self.landmarks = u[chosen]
        self.map = landmark_map(self.kernel, self.landmarks)
        self.design = self.features(inputs)
        self.penalty = self.kernel.noise * (1.0 if groups is None else self._noise_shared(groups))
        return self

    def _noise_shared(self, groups: np.ndarray) -> float:
        """How many rows of a group count as one: the factor of the penalty that predicts held-out groups best."""
        n_groups = len(np.unique(groups))
        if n_groups < MIN_UNITS:
            return 1.0
        folds = cross_fit_folds(len(groups), min(5, n_groups // 2), self.rng, groups)
        losses = np.zeros(len(SHARED_NOISE))
        for rows, system in zip(folds, self._systems(folds), strict=True):
            for number, factor in enumerate(SHARED_NOISE):
                w = ridge(*system, factor * self.kernel.noise)
                losses[number] += np.sum((self.target[rows] - self.design[rows] @ w) ** 2)
        return float(SHARED_NOISE[np.argmin(losses)])

    def features(self, inputs: Matrix) -> np.ndarray:
        """Features of raw rows."""
        u = standard(self.scaler, inputs)
        return np.vstack(
            [self.kernel.between(part, self.landmarks) @ self.map for part in np.array_split(u, -(-len(u) // 2000))]
        )

    def coefficients(self, folds: list[np.ndarray]) -> list[np.ndarray]:
        """Per fold, coefficients from all other rows (one fold: from all rows)."""
        return [ridge(*system, self.penalty) for system in self._systems(folds)]

    def _systems(self, folds: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Per fold, gram matrix and moment of all other rows (one fold: of all rows)."""
        gram, moment = self.design.T @ self.design, self.design.T @ self.target
        for rows in folds:
            inside = self.design[rows] if len(folds) > 1 else self.design[:0]
            outside = self.target[rows] if len(folds) > 1 else self.target[:0]
            yield gram - inside.T @ inside, moment - inside.T @ outside

    def predict(self, features: np.ndarray, coefficients: np.ndarray) -> Matrix:
        """Predictions in raw units."""
        return self.target_scaler.back(features @ coefficients)


def column_scaler(array: Matrix) -> Scaler:
    """Scale of numeric columns; indicators stay 0 and 1, whose distances are known."""
    scaler = Scaler.of(array)
    indicator = np.isin(array, (0.0, 1.0)).all(axis=0)
    return Scaler(np.where(indicator, 0.0, scaler.mean), np.where(indicator, 1.0, scaler.scale))


def standard(scaler: Scaler, array: np.ndarray) -> np.ndarray:
    """Standard units in double precision: kernel matrices are too ill-conditioned for single."""
    return (array - scaler.mean) / scaler.scale
