"""Figures from records: as SVG that can stand inside an HTML page in light and dark, or as files."""

import io
import re
from bisect import bisect_right
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from prudent.bench._definition import BenchError, Figure, point_label
from prudent.bench._folder import Sweep, load_folder
from prudent.bench._table import summarise

# Middle tones, told apart by colour-blind readers (after Okabe and Ito), with contrast on white and on near-black.
_COLOURS = ("#2f86c5", "#d9711c", "#189a72", "#c267a0", "#8c8c1a", "#7a72d6")
_MARKERS = ("o", "s", "D", "^", "v", "P")
_INK = "#010203"
"""Stands for the page's text colour: replaced by ``currentColor``."""
_BAR = "bar: target or published"

FORMATS = ("png", "svg", "pdf")


def svg(sweep: Sweep, figure: Figure) -> str | None:
    """The figure as an ``<svg>`` element, or None when no run has the data."""
    out = io.StringIO()
    if not _draw(out, sweep, figure, ink=_INK, size=(5.2, 3.7), format="svg", transparent=True):
        return None
    return _inline(out.getvalue(), f"{sweep.experiment.title}: {_title(sweep, figure.y)}")


def write_figures(
    folder: Path, out: Path | None = None, names: list[str] | None = None, *, format: str = "png"
) -> list[Path]:
    """Write every figure of a folder of records (default: to ``folder/figures``) as a file; returns their paths."""
    if format not in FORMATS:
        raise BenchError(f"the format must be one of {', '.join(FORMATS)}, got {format!r}")
    sweeps = load_folder(folder, names)
    out = out or folder / "figures"
    written = []
    for sweep in sweeps:
        for figure in sweep.experiment.figures:
            drawn = io.BytesIO()
            if _draw(drawn, sweep, figure, ink="black", size=(8.0, 4.8), format=format, dpi=110):
                path = out / f"{sweep.experiment.name.replace('/', '-')}-{figure.y}.{format}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(drawn.getvalue())
                written.append(path)
    if not written:
        raise BenchError(f"no experiment in {folder} has a figure with data: {[s.experiment.name for s in sweeps]}")
    return written


def _draw(
    out: Any, sweep: Sweep, figure: Figure, *, ink: str, size: tuple[float, float], format: str, **options: Any
) -> bool:
    """Draw the figure into ``out``; False when no run has the data."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    style: dict[Any, Any] = {
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.alpha": 0.18,
        "svg.fonttype": "none",
        # Element ids come from this salt: two figures on one page must not share them.
        "svg.hashsalt": f"{sweep.experiment.name} {figure.kind} {figure.y}",
        "font.family": "sans-serif",
    }
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    style |= dict.fromkeys(inked, ink)
    draw: dict[str, Callable[[Any, Sweep, Figure], None]] = {"boxes": _boxes, "lines": _lines, "curves": _curves}
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots()
        draw[figure.kind](axes, sweep, figure)
        if not axes.has_data():
            return False
        if figure.log_x and figure.kind != "boxes":
            axes.set_xscale("log")
        if figure.log_y:
            axes.set_yscale("log")
        _plain_ticks(axes, sweep, figure)
        axes.set_xlabel(_title(sweep, figure.x))
        axes.set_ylabel(_title(sweep, figure.y))
        named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        labels = sorted(named, key=lambda label: label == _BAR)
        handles = [named[label] for label in labels]
        for n_columns in (3, 2, 1):  # Long labels need room.
            where = {"loc": "outside lower center", "ncols": n_columns, "frameon": False, "fontsize": 10}
            legend = canvas.legend(handles, labels, **where)
            if n_columns == 1 or legend.get_window_extent().width < canvas.bbox.width:
                break
            legend.remove()
        # No date inside: the same records make the same file.
        dateless = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
        canvas.savefig(out, format=format, metadata=dateless[format], **options)
    return True


def _boxes(axes: Any, sweep: Sweep, figure: Figure) -> None:
    points = sweep.experiment.points()
    methods = sweep.experiment.methods
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [index + (number - (len(methods) - 1) / 2) * width for index in range(len(points))]
        data = [sweep.values(method.name, point, figure.y) for point in points]
        filled = [(place, values) for place, values in zip(places, data, strict=True) if values]
        if not filled:
            continue
        line = {"color": colour, "linewidth": 1.3}
        boxes = axes.boxplot(
            [values for _, values in filled],
            positions=[place for place, _ in filled],
            widths=width * 0.8,
            patch_artist=True,
            # Beyond the colours, hatches tell boxes apart.
            boxprops={
                "facecolor": colour + "55",
                "edgecolor": colour,
                "hatch": (None, "////", "....")[number // len(_COLOURS) % 3],
            },
            whiskerprops=line,
            capprops=line,
            medianprops={"color": colour, "linewidth": 2.2},
            flierprops={"marker": ".", "markeredgecolor": colour, "markersize": 5},
        )
        boxes["boxes"][0].set_label(method.title)
        place_of = {point_label(point): place for point, place in zip(points, places, strict=True)}
        _mark_references(axes, sweep, figure, number, method.name, place_of)
    axes.set_xticks(range(len(points)), [", ".join(str(value) for value in point.values()) for point in points])
    axes.set_xlim(-0.6, len(points) - 0.4)


def _lines(axes: Any, sweep: Sweep, figure: Figure) -> None:
    for number, method in enumerate(sweep.experiment.methods):
        by_x: dict[Any, list[float]] = {}
        for point in sweep.experiment.points():
            by_x.setdefault(point[figure.x], []).extend(sweep.values(method.name, point, figure.y))
        _band(axes, sweep, number, method.title, [(x, values) for x, values in by_x.items() if values])
        place_of = {point_label(point): point[figure.x] for point in sweep.experiment.points()}
        _mark_references(axes, sweep, figure, number, method.name, place_of)


def _curves(axes: Any, sweep: Sweep, figure: Figure) -> None:
    number = 0
    for method in sweep.experiment.methods:
        for point in sweep.experiment.points():
            curves = sweep.curves(method.name, point, figure.x, figure.y)
            label = ", ".join(text for text in (method.title, point_label(point)) if text)
            # Runs that were looked at at different x keep their last value until the next look.
            is_stepped = len({tuple(xs) for xs, _ in curves}) > 1
            _band(axes, sweep, number, label, _by_x(curves), is_stepped=is_stepped)
            number += 1


def _by_x(curves: list[tuple[list[float], list[float]]]) -> list[tuple[float, list[float]]]:
    """Values of all runs at every x, each the last one known; from where all runs have begun."""
    if not curves:
        return []
    begin = max(xs[0] for xs, _ in curves)
    places = sorted({x for xs, _ in curves for x in xs if x >= begin})
    return [(x, [ys[bisect_right(xs, x) - 1] for xs, ys in curves]) for x in places]


def _band(
    axes: Any, sweep: Sweep, number: int, label: str, data: list[tuple[Any, list[float]]], *, is_stepped: bool = False
) -> None:
    """Median line and quartile band; or the mean with half a standard deviation either way, as the thesis draws it."""
    if not data:
        return
    xs = [x for x, _ in data]
    statistic = sweep.experiment.statistic
    low, middle, high = zip(*(summarise(values, statistic) for _, values in data), strict=True)
    if statistic == "mean":
        low, high = ([(end + mid) / 2 for end, mid in zip(ends, middle, strict=True)] for ends in (low, high))
    colour = _COLOURS[number % len(_COLOURS)]
    marker = _MARKERS[number % len(_MARKERS)] if len(xs) <= 20 else None
    # Beyond the colours, the dashes tell lines apart.
    style = ("-", "--", ":")[number // len(_COLOURS) % 3]
    shape: dict[str, Any] = {"drawstyle": "steps-post"} if is_stepped else {"marker": marker, "markersize": 5}
    axes.plot(xs, middle, color=colour, linewidth=1.8, linestyle=style, label=label, **shape)
    axes.fill_between(xs, low, high, color=colour, alpha=0.22, linewidth=0, step="post" if is_stepped else None)


def _mark_references(
    axes: Any, sweep: Sweep, figure: Figure, number: int, method: str, place_of: dict[str, Any]
) -> None:
    """A short bar, in the method's colour, at each value that stands beside this method."""
    for ref in sweep.experiment.references:
        marks = [(place_of[label], value) for label, value in ref.values.items() if label in place_of]
        if marks and ref.metric == figure.y and ref.method == method and ref.role != "goal":
            bars = {"linestyle": "", "marker": "_", "markersize": 14, "markeredgewidth": 1.8}
            known = axes.get_legend_handles_labels()[1]
            axes.plot(*zip(*marks, strict=True), color=_COLOURS[number % len(_COLOURS)], **bars)
            if _BAR not in known:
                axes.plot([], [], color=axes.xaxis.label.get_color(), label=_BAR, **bars)


def _plain_ticks(axes: Any, sweep: Sweep, figure: Figure) -> None:
    """Numbers as written (0.05, 2000) instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if figure.log_y:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_formatter(NullFormatter())
    if figure.kind == "lines":
        # Where something was measured.
        axes.set_xticks(sweep.experiment.grid[figure.x])
        axes.xaxis.set_major_formatter(plain)
        axes.xaxis.set_minor_locator(NullLocator())


def _title(sweep: Sweep, name: str) -> str:
    titles = {metric.name: metric.title for metric in sweep.experiment.metrics}
    return titles.get(name, name)


def _inline(text: str, description: str) -> str:
    """An element for use inside HTML: no prologue or namespaces (the parser knows them), page's own ink and font."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    box = re.search(r'viewBox="[^"]*"', text)
    opening = f'<svg {box[0] if box else ""} role="img" aria-label="{escape(description)}">'
    return (opening + text[text.index(">") + 1 :]).replace(_INK, "currentColor").strip()
