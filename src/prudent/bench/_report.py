"""The report of a folder: one self-contained HTML page, or Markdown, or CSV."""

import statistics
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path

from prudent.bench._definition import BenchError, point_label
from prudent.bench._figures import svg
from prudent.bench._folder import Sweep, load_folder
from prudent.bench._table import Row, Table, csv_text, entry_text, footnotes, margin_texts, markdown, shortfalls, tables

_ALL_REACHED = "Nothing: all cells ran, no target or goal is missed."
_ALL_RAN = "All cells ran. A quick run is not judged by targets."
_MARKS = {
    True: '<b class=yes title="target reached">✓</b>',
    False: '<b class=no title="target missed">✗</b>',
    None: "",
}

FORMATS = ("html", "md", "csv")


def write_report(folder: Path, *, format: str = "html", out: Path | None = None) -> Path:
    """Write the report of a folder of records (default: ``folder/report.FORMAT``) and return its path."""
    if format not in FORMATS:
        raise BenchError(f"the format must be one of {', '.join(FORMATS)}, got {format!r}")
    sweeps = load_folder(folder)
    make = {"html": html_page, "md": _markdown_page, "csv": csv_text}[format]
    path = out or folder / f"report.{format}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(make(sweeps))
    return path


def not_reached(sweep: Sweep) -> list[str]:
    """Plain sentences: missed targets and goals, missing cells, failures, lost workers; or that there are none."""
    missed: dict[str, list[str]] = {}
    for miss in shortfalls(sweep):
        what = "not shown, runs are missing or failed" if miss.value is None else "missed"
        title = f"{miss.role} {what}: {miss.method} against {miss.label} ({miss.metric.title})"
        bound = format(miss.bound, miss.metric.format)
        found = "" if miss.value is None else f"{format(miss.value, miss.metric.format)}, not "
        missed.setdefault(title, []).append(f"{miss.column} {found}{bound}")
    lines = [f"{title}: {'; '.join(places)}" for title, places in missed.items()]
    total, missing, errors = len(sweep.experiment.cells()), len(sweep.missing()), len(sweep.errors())
    if missing:
        command = f"{sweep.command} --out {sweep.folder} --resume"
        lines.append(f"{missing} of {total} cells have not run; '{command}' runs them")
    if errors:
        lines.append(f"{errors} of {total} cells failed")
    if sweep.lost_workers:
        lines.append(f"{sweep.lost_workers} attempts ended with the death of a worker process")
    return lines or [_ALL_RAN if sweep.experiment.is_quick else _ALL_REACHED]


def html_page(sweeps: list[Sweep]) -> str:
    """The page as text; it loads nothing from anywhere."""
    css = resources.files("prudent.bench").joinpath("report.css").read_text()
    body = "\n".join([_header(sweeps), *map(_section, sweeps)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Prudent benchmarks</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _header(sweeps: list[Sweep]) -> str:
    entries = [entry for sweep in sweeps for entry in sweep.results.values()]
    failed = sum(len(sweep.errors()) for sweep in sweeps)
    seconds = sum(entry.get("wall_seconds", 0.0) for entry in entries)
    facts = [
        ("cells done", str(len(entries) - failed)),
        ("failed", str(failed)),
        ("not run", str(sum(len(sweep.missing()) for sweep in sweeps))),
        ("targets not reached", str(sum(miss.role == "target" for sweep in sweeps for miss in shortfalls(sweep)))),
        ("time in cells", duration(seconds)),
    ]
    tiles = "".join(f"<div><dd>{value}</dd><dt>{label}</dt></div>" for label, value in facts)
    links = "".join(
        f'<li><a href="#{_anchor(sweep)}">{escape(sweep.experiment.title)}</a> {_name(sweep)}</li>' for sweep in sweeps
    )
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"<header>\n<h1>Prudent benchmarks</h1>\n<p class=quiet>{made} · {escape(_provenance(entries))}</p>\n"
        f"<dl class=tiles>{tiles}</dl>\n<ul class=contents>{links}</ul>\n</header>"
    )


def _provenance(entries: list[dict]) -> str:
    """Commits, packages and machines of the records."""
    commits = sorted({entry["commit"] for entry in entries if entry["commit"]})
    machines = [entry["machine"] for entry in entries if "machine" in entry]
    places = sorted({f"{machine['cpu']}, {machine['cores']} cores" for machine in machines})
    versions = [entry["versions"] for entry in entries if "versions" in entry]
    found = {name: sorted({v[name] for v in versions if name in v}) for name in ("python", "prudent", "jax")}
    shown = [f"{name} {', '.join(numbers)}" for name, numbers in found.items() if numbers]
    return " · ".join([*(f"commit {commit}" for commit in commits), *shown, *places])


def _section(sweep: Sweep) -> str:
    experiment = sweep.experiment
    figures = "".join(f"<figure>{picture}</figure>" for figure in experiment.figures if (picture := svg(sweep, figure)))
    quick = " <span class=badge>quick</span>" if experiment.is_quick else ""
    parts = [
        f'<section id="{_anchor(sweep)}">',
        f"<h2>{escape(experiment.title)}{quick}</h2>\n<p class=quiet>{_name(sweep)}</p>",
        f"<div class=figures>{figures}</div>",
        *(_html_table(table) for table in tables(sweep)),
        f'<ul class="quiet notes">{_items(footnotes(sweep))}</ul>',
        f"<pre class=command>{escape(sweep.command)}</pre>",
        f"<h3>Not reached</h3>\n<ul>{_items(not_reached(sweep))}</ul>",
        _errors(sweep),
        f"<details>\n<summary>Time and memory</summary>\n{_times(sweep)}\n</details>\n</section>",
    ]
    return "\n".join(parts)


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.heads)
    rows = "\n".join(_html_row(row, table) for row in table.shown)
    return _scrolling(head, rows)


def _html_row(row: Row, table: Table) -> str:
    cells = []
    for entry in row.entries:
        main, _, rest = entry_text(entry, table).partition(" ")
        cells.append(f"<td>{main}{_MARKS[entry.reached]}<small>{escape(rest)}</small></td>")
    cells += [f"<td>{text}</td>" for text in margin_texts(row, table)]
    kind = "" if row.kind == "ours" else f"<small>{row.kind}</small>"
    return f"<tr class={row.kind}><th>{escape(row.label)}{kind}</th>{''.join(cells)}</tr>"


def _times(sweep: Sweep) -> str:
    head = ["of the cells that ended well", "runs", "median wall s", "slowest s", "median CPU s", "largest peak MB"]
    rows = []
    for method in sweep.experiment.methods:
        for point in sweep.experiment.points():
            entries = [entry for entry in sweep.at(method.name, point) if entry["status"] == "ok"]
            if not entries:
                continue
            wall = [entry["wall_seconds"] for entry in entries]
            cpu = statistics.median(entry["cpu_seconds"] for entry in entries)
            peak = max(entry["peak_mb"] for entry in entries)
            label = ", ".join(text for text in (method.title, point_label(point)) if text)
            numbers = [len(wall), f"{statistics.median(wall):.1f}", f"{max(wall):.1f}", f"{cpu:.1f}", f"{peak:.0f}"]
            cells = "".join(f"<td>{text}</td>" for text in numbers)
            rows.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    return _scrolling("".join(f"<th>{text}</th>" for text in head), "\n".join(rows))


def _errors(sweep: Sweep) -> str:
    """One folded block per distinct error, with its cells and the traceback of the first."""
    groups: dict[str, list[dict]] = {}
    for entry in sweep.errors():
        groups.setdefault(f"{entry['error']['type']}: {entry['error']['message']}", []).append(entry)
    blocks = []
    for title, entries in groups.items():
        cells = "; ".join(entry["key"] for entry in entries)
        blocks.append(
            f"<details class=error><summary>{len(entries)} × {escape(title)}</summary><p>{escape(cells)}</p>"
            f"<pre>{escape(entries[0]['error']['traceback'])}</pre></details>"
        )
    return "\n".join(blocks)


def _markdown_page(sweeps: list[Sweep]) -> str:
    parts = ["# Prudent benchmarks\n"]
    for sweep in sweeps:
        heading = f"## {sweep.experiment.title} (`{sweep.experiment.name}`)"
        failed = "\n".join(f"- {line}" for line in not_reached(sweep))
        parts.append(f"{heading}\n\n{markdown(sweep)}\nNot reached:\n\n{failed}\n")
    return "\n".join(parts)


def duration(seconds: float) -> str:
    """``0.4 s``, ``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _anchor(sweep: Sweep) -> str:
    return sweep.experiment.name.replace("/", "-")


def _scrolling(head: str, rows: str) -> str:
    """A table that scrolls by itself on a narrow page."""
    return f"<div class=scroll><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"


def _items(lines: list[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _name(sweep: Sweep) -> str:
    return f"<code>{escape(sweep.experiment.name)}</code>"
