"""Tables from records: ours beside published numbers, as Markdown, CSV, HTML or on the terminal."""

import csv
import io
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prudent.bench._definition import BenchError, Metric, Reference, point_label
from prudent.bench._folder import Sweep

_NEAR = 0.05
_STATISTICS = {
    "median": "median (quartiles)",
    "mean": "mean ± standard deviation (half of one in figures)",
}
_NUMBERS = ("statistic", "value", "low", "high", "runs", "errors")


@dataclass(frozen=True)
class Entry:
    """One number of a table: the median over runs with its quartiles, the mean with one standard deviation either way,
    or a published value."""

    value: float | None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    errors: int = 0
    reached: bool | None = None
    """Whether the target is met; None without a target, for a quick run, whose settings are not the target's, and
    where runs failed or are missing."""


@dataclass(frozen=True)
class Row:
    label: str
    kind: str
    """``ours``, or the role of a reference."""
    entries: tuple[Entry, ...]
    slope: tuple[float, float] | None = None
    """Log-log slope and its standard error."""
    published: float | None = None
    """Published value of this method, where it can stand in a column beside the only one of ours."""


@dataclass(frozen=True)
class Table:
    """One metric of one experiment."""

    experiment: str
    metric: Metric
    statistic: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows for readers: what is the same for all methods, such as a reference line, stands there once."""
        own = [row for row in self.rows if row.kind == "ours"]
        differ = len(own) < 2 or not all(all(map(_alike, row.entries, own[0].entries)) for row in own)
        if self.metric.better or differ or any(entry.value is None for entry in own[0].entries):
            return self.rows
        return (replace(own[0], label="the same for all"), *(row for row in self.rows if row.kind != "ours"))

    @property
    def heads(self) -> tuple[str, ...]:
        """Titles of all columns."""
        columns = (column or self.statistic for column in self.columns)
        return (self.metric.title, *columns, *self.margins)

    @property
    def margins(self) -> list[str]:
        """Titles of the columns that hold no entries: `margin_texts` fills them."""
        filled = {
            "published": any(row.published is not None for row in self.rows),
            "slope": any(row.slope is not None for row in self.rows),
        }
        return [title for title, is_filled in filled.items() if is_filled]


@dataclass(frozen=True)
class Shortfall:
    """A target or goal that the records miss, or (without a value) do not show because runs failed or are missing."""

    method: str
    column: str
    metric: Metric
    value: float | None
    bound: float
    label: str
    role: str


def tables(sweep: Sweep) -> list[Table]:
    """One table per metric that is a number."""
    columns = tuple(point_label(point) for point in sweep.experiment.points())
    return [
        Table(sweep.experiment.name, metric, sweep.experiment.statistic, columns, tuple(_rows(sweep, metric, columns)))
        for metric in sweep.experiment.metrics
        if metric.in_tables
    ]


def shortfalls(sweep: Sweep) -> list[Shortfall]:
    """Targets and goals that the medians (or means) of all runs do not reach; none for quick runs."""
    missed = []
    for table in tables(sweep):
        for method, row in zip(sweep.experiment.methods, table.rows, strict=False):
            for ref in _judged(sweep, table.metric, method.name):
                for column, entry in zip(table.columns, row.entries, strict=True):
                    value, bound = entry.value if _is_complete(sweep, entry) else None, ref.values.get(column)
                    if bound is not None and not _reaches(value, bound, table.metric):
                        missed.append(Shortfall(method.title, column, table.metric, value, bound, ref.label, ref.role))
    return missed


def _rows(sweep: Sweep, metric: Metric, columns: tuple[str, ...]) -> list[Row]:
    # Ours first, in the order of the definition: `shortfalls` relies on it.
    rows = [_own_row(sweep, metric, method.name, method.title) for method in sweep.experiment.methods]
    references = [ref for ref in sweep.experiment.references if ref.metric == metric.name]
    references = [ref for ref in references if any(column in ref.values for column in columns)]
    if len(columns) == 1:
        beside = {ref.method: ref.values[columns[0]] for ref in references if ref.role == "published" and ref.method}
        names = [method.name for method in sweep.experiment.methods]
        rows = [replace(row, published=beside.get(name)) for name, row in zip(names, rows, strict=True)]
        references = [ref for ref in references if ref.role != "published" or not ref.method]
    known = [Row(ref.label, ref.role, tuple(Entry(ref.values.get(column)) for column in columns)) for ref in references]
    # One row where the same number is asked of several methods.
    rows.extend(dict.fromkeys(known))
    return rows


def _own_row(sweep: Sweep, metric: Metric, method: str, label: str) -> Row:
    targets = [ref for ref in _judged(sweep, metric, method) if ref.role == "target"]
    entries = []
    for point in sweep.experiment.points():
        errors = sum(entry["status"] == "error" for entry in sweep.at(method, point))
        entry = _reach(sweep, method, point, metric) if metric.reach_of else _own(sweep, method, point, metric)
        bounds = [target.values[point_label(point)] for target in targets if point_label(point) in target.values]
        reached = None
        if bounds and _is_complete(sweep, entry):
            reached = all(_reaches(entry.value, bound, metric) for bound in bounds)
        entries.append(replace(entry, errors=errors, reached=reached))
    return Row(label, "ours", tuple(entries), _slope(sweep, metric, method))


def _own(sweep: Sweep, method: str, point: dict, metric: Metric) -> Entry:
    values = sweep.values(method, point, metric.name)
    if not values:
        return Entry(None)
    low, middle, high = summarise(values, sweep.experiment.statistic)
    return Entry(middle, low, high, len(values))


def _reach(sweep: Sweep, method: str, point: dict, metric: Metric) -> Entry:
    """`Metric.reach_of`: when the mean curve comes near its final level."""
    curves = sweep.curves(method, point, *metric.reach_of)
    by_x: dict[float, list[float]] = {}
    for xs, ys in curves:
        for x, y in zip(xs, ys, strict=True):
            by_x.setdefault(x, []).append(y)
    # Where all runs have a value: a mean over some of them would jump.
    mean = {x: statistics.fmean(values) for x, values in sorted(by_x.items()) if len(values) == len(curves)}
    if not mean:
        return Entry(None)
    level = final_level(list(mean.values()))
    reached = [x for x, y in mean.items() if y >= level - _NEAR]
    return Entry(reached[0] if level >= _NEAR and reached else None, runs=len(curves))


def final_level(curve: Sequence[float]) -> float:
    """Mean of the last twentieth of a curve: its single values still move."""
    return statistics.fmean(curve[-max(1, len(curve) // 20) :])


def _judged(sweep: Sweep, metric: Metric, method: str) -> list[Reference]:
    if sweep.experiment.is_quick or not metric.better:
        return []
    refs = sweep.experiment.references
    return [
        ref for ref in refs if ref.role in ("target", "goal") and ref.metric == metric.name and ref.method == method
    ]


def _is_complete(sweep: Sweep, entry: Entry) -> bool:
    return entry.value is not None and entry.runs == sweep.experiment.runs


def _reaches(value: float | None, bound: float, metric: Metric) -> bool:
    if value is None:
        return False
    return value <= bound if metric.better == "lower" else value >= bound


def _slope(sweep: Sweep, metric: Metric, method: str) -> tuple[float, float] | None:
    """Least-squares slope of log(metric) on log(axis) over all runs, with its standard error."""
    if not metric.slope_over:
        return None
    pairs = [
        (math.log(float(point[metric.slope_over])), math.log(value))
        for point in sweep.experiment.points()
        for value in sweep.values(method, point, metric.name)
        if value > 0
    ]
    if len(pairs) < 3 or len({x for x, _ in pairs}) < 2:
        return None
    xs, ys = zip(*pairs, strict=True)
    fit = statistics.linear_regression(xs, ys)
    residuals = [y - fit.intercept - fit.slope * x for x, y in pairs]
    spread = statistics.pvariance(xs) * len(xs)
    return fit.slope, math.sqrt(math.fsum(r * r for r in residuals) / (len(xs) - 2) / spread)


def summarise(values: list[float], statistic: str) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; or the mean between one standard deviation either way."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    if statistic == "mean":
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        return mean - deviation, mean, mean + deviation
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def _alike(one: Entry, other: Entry) -> bool:
    """Equal but for the last digits, in which machines differ."""
    pairs = ((one.value, other.value), (one.low, other.low), (one.high, other.high))
    return one.runs == other.runs and all(
        a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in pairs
    )


def entry_text(entry: Entry, table: Table) -> str:
    """``0.105 (0.098–0.117)``, or ``0.105 ± 0.010`` for means, with what failed; an en dash for nothing."""
    form = table.metric.format
    text = "–" if entry.value is None else format(entry.value, form)
    if entry.value is not None and entry.low is not None and entry.high is not None and entry.runs > 1:
        is_mean = table.statistic == "mean"
        text += (
            f" ± {format(entry.high - entry.value, form)}"
            if is_mean
            else f" ({format(entry.low, form)}–{format(entry.high, form)})"
        )
    return text + (f" [{entry.errors} failed]" if entry.errors else "")


def margin_texts(row: Row, table: Table) -> list[str]:
    """What a row has in the columns `Table.margins`."""
    texts = {
        "published": "" if row.published is None else format(row.published, table.metric.format),
        "slope": "" if row.slope is None else f"{row.slope[0]:.2f} ± {row.slope[1]:.2f}",
    }
    return [texts[title] for title in table.margins]


def row_label(row: Row) -> str:
    return row.label if row.kind == "ours" else f"{row.label} ({row.kind})"


def footnotes(sweep: Sweep) -> list[str]:
    """Protocol, what the numbers are, and sources; the same words in every format."""
    experiment = sweep.experiment
    places = [(method.name, point) for method in experiment.methods for point in experiment.points()]
    runs = sorted({sum(entry["status"] == "ok" for entry in sweep.at(*place)) for place in places})
    count = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    spread = "one run" if runs == [1] else f"{_STATISTICS[experiment.statistic]} over {count} runs"
    commits = sorted({entry["commit"] for entry in sweep.results.values() if entry["commit"]})
    failed = f", {len(sweep.errors())} failed" if sweep.errors() else ""
    notes = [f"Protocol: {experiment.protocol}", f"Ours: {spread}, seeds from 0{failed}{_at_commit(commits)}."]
    settings = [(method.title, method.settings) for method in experiment.methods if method.settings]
    notes += [f"{title}: {', '.join(f'{name}={value}' for name, value in items.items())}." for title, items in settings]
    if experiment.is_quick:
        budget = ", ".join(f"{name}={value}" for name, value in experiment.budget.items())
        smaller = f" ({budget})" if budget else ""
        notes.insert(1, f"A quick run, with smaller settings{smaller} than the protocol's: targets are not judged.")
    sources = dict.fromkeys(ref.source for ref in experiment.references if ref.source)
    return notes + [f"Source: {source}." for source in sources]


def _at_commit(commits: list[str]) -> str:
    return f", commit {', '.join(commits)}" if commits else ""


def markdown(sweep: Sweep, metrics: Sequence[str] = ()) -> str:
    """The tables of an experiment as Markdown, protocol and command under them. The same records give the same text.

    ``metrics`` names those whose tables are shown; none: all.
    """
    all_tables = tables(sweep)
    unknown = set(metrics) - {table.metric.name for table in all_tables}
    if unknown:
        shown = ", ".join(table.metric.name for table in all_tables)
        raise BenchError(f"{sweep.experiment.name} has no table of {min(unknown)!r}; it has {shown}")
    blocks = [_markdown_table(table) for table in all_tables if not metrics or table.metric.name in metrics]
    notes = "\n".join(f"- {note}" for note in footnotes(sweep))
    return "\n\n".join([*blocks, notes + f"\n- Command: `{sweep.command}`"]) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [list(table.heads), ["---", *["---:"] * (len(table.heads) - 1)]]
    for row in table.shown:
        cells = [_mark(entry_text(entry, table), entry.reached) for entry in row.entries]
        lines.append([row_label(row), *cells, *margin_texts(row, table)])
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


def _mark(text: str, reached: bool | None) -> str:
    return text if reached is None else f"{text} {'✓' if reached else '✗'}"


def csv_text(sweeps: list[Sweep]) -> str:
    """One line per number of every table."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["experiment", "metric", "method", "kind", "point", *_NUMBERS])
    for sweep in sweeps:
        for table in tables(sweep):
            for row in table.rows:
                for column, entry in zip(table.columns, row.entries, strict=True):
                    what = table.statistic if row.kind == "ours" else ""
                    numbers = [what, entry.value, entry.low, entry.high, entry.runs, entry.errors]
                    writer.writerow([table.experiment, table.metric.name, row.label, row.kind, column, *numbers])
                if row.published is not None:
                    names = [table.experiment, table.metric.name, row.label, "published", table.columns[0]]
                    writer.writerow([*names, "", row.published, None, None, 0, 0])
                if row.slope is not None:
                    value, error = row.slope
                    names = [table.experiment, table.metric.name, row.label, "slope", ""]
                    writer.writerow([*names, "± standard error", value, value - error, value + error, 0, 0])
    return out.getvalue()


def update_blocks(path: Path, sweeps: list[Sweep]) -> None:
    """Replace what stands between ``<!-- bench:NAME -->`` and ``<!-- /bench -->`` in Markdown: all blocks, or none.

    ``<!-- bench:NAME mse reward -->`` asks for the tables of some metrics only.
    """
    try:
        text = path.read_text()
    except OSError as err:
        raise BenchError(f"cannot read {path}: {err.strerror}") from err
    for sweep in sweeps:
        name = sweep.experiment.name
        pattern = re.compile(rf"(<!-- bench:{re.escape(name)}((?: [\w-]+)*) -->\n).*?(<!-- /bench -->)", re.DOTALL)

        def block(match: re.Match, sweep: Sweep = sweep) -> str:
            return f"{match[1]}\n{markdown(sweep, match[2].split())}\n{match[3]}"

        text, count = pattern.subn(block, text)
        if count != 1:
            raise BenchError(
                f"{path} must have one block '<!-- bench:{name} -->' ... '<!-- /bench -->', it has {count}; add it, or "
                "name other experiments with --experiment"
            )
    path.write_text(text)
