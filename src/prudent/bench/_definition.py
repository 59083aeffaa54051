"""What an experiment is: a frozen record of plain data, from which cells, hashes, tables and figures follow."""

import hashlib
import itertools
import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from prudent.errors import PrudentError

Scalar = int | float | str
Point = dict[str, Scalar]


class BenchError(PrudentError, ValueError):
    """Bad input to the benchmark commands; the message is one line with rule, value and cure."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One compared method."""

    name: str
    """Short identifier, used in records."""
    label: str = ""
    """How tables and figures call it; the name when empty."""
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    """What ``run_cell`` receives; JSON values only."""
    quick: dict[str, Any] = field(default_factory=dict, hash=False)
    """Settings replaced by ``--quick``."""
    seconds: float = 1.0
    """Estimated time of one cell on one core, averaged over the grid."""
    quick_seconds: float = 1.0
    """The same for a ``--quick`` cell."""

    @property
    def title(self) -> str:
        return self.label or self.name


# What the runner measures of every cell: time and memory, all of `run_cell` counted.
COSTS = ("wall_seconds", "cpu_seconds", "peak_mb")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number (or, for curves, list of numbers) that every cell returns, or one of `COSTS`."""

    name: str
    label: str = ""
    better: Literal["lower", "higher", ""] = ""
    """Direction in which targets are judged; empty when there is nothing to judge."""
    format: str = ".3f"
    slope_over: str = ""
    """Grid axis against which the log-log slope of this metric is fitted and shown."""
    in_tables: bool = True
    """False for lists, which only figures can show."""
    reach_of: tuple[str, ...] = ()
    """Two list-valued metrics (x, y): no cell returns this metric, it is the first x at which the mean of y over runs
    comes within 0.05 of its final level; nothing for a level below 0.05."""

    @property
    def title(self) -> str:
        return self.label or self.name

    @property
    def is_returned(self) -> bool:
        """Whether cells return it."""
        return not self.reach_of and self.name not in COSTS


# What a cell of an estimator costs. CPU seconds hardly depend on what else the machine does; memory is another matter,
# because a worker keeps what earlier cells have compiled (`_cell.execute_alone`).
CPU_SECONDS = Metric(name="cpu_seconds", label="fit and evaluation, CPU seconds", format=".1f")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Numbers shown beside ours: published by others, known from theory, or to be reached."""

    label: str
    metric: str
    values: dict[str, float] = field(hash=False)
    """Value by grid point, keyed as `point_label` writes it, for example ``{"n=1000": 0.207}``."""
    method: str = ""
    """Our method that it stands beside; empty for a method we do not run."""
    role: Literal["published", "known", "target", "goal"] = "published"
    """A target or a goal is judged against its ``method``; what misses it is listed as not reached."""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture of one metric.

    ``boxes``: one box per method at each value of a grid axis. ``lines``: median with quartile band against a grid
    axis. ``curves``: ``x`` and ``y`` are list-valued metrics of each run, drawn as median with band over runs.
    """

    kind: Literal["boxes", "lines", "curves"]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, kw_only=True)
class Quick:
    """What ``--quick`` replaces, so that the whole experiment takes seconds."""

    runs: int = 2
    grid: dict[str, tuple[Scalar, ...]] = field(default_factory=dict, hash=False)
    budget: dict[str, Any] = field(default_factory=dict, hash=False)
    methods: tuple[str, ...] = ()
    """Names of the methods that a quick run shows; all of them when empty."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What ``run_cell`` is given: one cell and everything that decides its numbers."""

    method: str
    settings: dict[str, Any] = field(hash=False)
    point: Point = field(hash=False)
    seed: int
    budget: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Cell:
    """Method, grid point and seed: the unit of work and of recording."""

    method: str
    point: Point = field(hash=False)
    seed: int

    @property
    def key(self) -> str:
        return cell_key(self.method, self.point, self.seed)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A benchmark as data.

    Only what decides the numbers (``run_cell``, ``version``, settings, budget, quick or not) enters the definition
    hash. Words, published values, more runs, a new method or a longer grid leave recorded cells valid. So does a new
    metric: cells recorded before it have no value of it, and are run again only in a new folder.
    """

    name: str
    """Question and design, for example ``iv/demand``."""
    title: str
    protocol: str
    """One sentence that says how the numbers are made."""
    run_cell: str
    """``"module:function"``; the function takes a `Task` and returns metrics by name. Imported in workers only."""
    methods: tuple[Method, ...]
    grid: dict[str, tuple[Scalar, ...]] = field(default_factory=dict, hash=False)
    """Values by axis; the cells are their product. Empty: a single point."""
    runs: int = 20
    """Runs per method and point; their seeds are 0..runs-1."""
    budget: dict[str, Any] = field(default_factory=dict, hash=False)
    """Limits shared by all methods, such as a number of environment steps."""
    metrics: tuple[Metric, ...] = ()
    references: tuple[Reference, ...] = ()
    figures: tuple[Figure, ...] = ()
    quick: Quick = Quick()
    statistic: Literal["median", "mean"] = "median"
    """What tables and figures show of the runs: median and quartiles, or mean and standard deviation."""
    version: int = 1
    """Raise it when ``run_cell`` changes meaning without a change of settings."""
    is_quick: bool = False

    def __post_init__(self):
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*", self.name):
            # The name becomes a path under the output folder.
            raise BenchError(f"experiment names are lower-case words joined by '/', got {self.name!r}")
        if not re.fullmatch(r"[\w.]+:\w+", self.run_cell):
            raise BenchError(f"{self.name}: run_cell must be 'module:function', got {self.run_cell!r}")
        if self.runs < 1:
            raise BenchError(f"the number of runs must be at least 1, got {self.runs}")
        if not self.methods or not self.metrics:
            raise BenchError(f"{self.name}: an experiment needs at least one method and one metric")
        names = [method.name for method in self.methods]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise BenchError(f"{self.name}: methods need names of their own, two are called {twice[0]!r}")
        unknown = set(self.quick.methods) - set(names)
        if unknown and not self.is_quick:
            raise BenchError(f"{self.name}: its quick version names {min(unknown)!r}, which is none of its methods")

    def points(self) -> list[Point]:
        """All grid points, in the order of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def cells(self) -> list[Cell]:
        """All cells, seed by seed: an interrupted sweep then has some runs of everything rather than all of a part."""
        return [
            Cell(method.name, point, seed)
            for seed in range(self.runs)
            for point in self.points()
            for method in self.methods
        ]

    def method(self, name: str) -> Method:
        return next(method for method in self.methods if method.name == name)

    def task(self, cell: Cell) -> Task:
        settings = self.method(cell.method).settings
        return Task(method=cell.method, settings=settings, point=cell.point, seed=cell.seed, budget=self.budget)

    def digest(self, method: str) -> str:
        """Definition hash of one method's cells."""
        decisive = [self.name, self.run_cell, self.version, method, self.method(method).settings, self.budget]
        text = json.dumps([*decisive, self.is_quick], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def digests(self) -> dict[str, str]:
        return {method.name: self.digest(method.name) for method in self.methods}

    def estimate_seconds(self) -> float:
        """Estimated time of all cells one after another on one core."""
        per_point = sum(method.quick_seconds if self.is_quick else method.seconds for method in self.methods)
        return per_point * len(self.points()) * self.runs

    def quick_version(self) -> "Experiment":
        """The experiment that ``--quick`` runs."""
        chosen = self.quick.methods or [method.name for method in self.methods]
        methods = tuple(
            replace(method, settings=method.settings | method.quick) for method in self.methods if method.name in chosen
        )
        return replace(
            self,
            methods=methods,
            grid=self.grid | self.quick.grid,
            runs=self.quick.runs,
            budget=self.budget | self.quick.budget,
            is_quick=True,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Experiment":
        """Inverse of `to_json`, also after a round trip through text (tuples come back as lists)."""

        def grid(values: dict[str, Any]) -> dict[str, tuple[Scalar, ...]]:
            return {axis: tuple(items) for axis, items in values.items()}

        parts = {
            "methods": tuple(Method(**item) for item in data["methods"]),
            "metrics": tuple(
                Metric(**(item | {"reach_of": tuple(item.get("reach_of", ()))})) for item in data["metrics"]
            ),
            "references": tuple(Reference(**item) for item in data["references"]),
            "figures": tuple(Figure(**item) for item in data["figures"]),
            "grid": grid(data["grid"]),
            "quick": Quick(
                **(
                    data["quick"]
                    | {"grid": grid(data["quick"]["grid"]), "methods": tuple(data["quick"].get("methods", ()))}
                )
            ),
        }
        return cls(**(data | parts))


def point_label(point: Point) -> str:
    """How records and tables write a grid point: ``n=1000`` or ``n=1000, k=5``."""
    return ", ".join(f"{axis}={value}" for axis, value in point.items())


def cell_key(method: str, point: Point, seed: int) -> str:
    return f"{method} | {point_label(point)} | {seed}"
