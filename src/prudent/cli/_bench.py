"""``prudent bench``: list, run, tabulate and report experiments."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prudent import bench
from prudent.cli._models import Json

app = typer.Typer(no_args_is_help=True, help="Run, resume, tabulate and report the experiments.")

_Folder = Annotated[Path, typer.Argument(help="Folder of records, as given to 'bench run --out'.")]


@app.command("list")
def list_experiments(
    names: Annotated[list[str] | None, typer.Argument(help="Names or patterns such as 'iv/*'; none: all.")] = None,
    as_json: Json = False,
) -> None:
    """List the experiments, with the time they take on this machine's cores."""
    from prudent.bench._threads import available_cores

    experiments = bench.find(names or [])
    cores = len(available_cores())
    rows = [
        {
            "name": experiment.name,
            "title": experiment.title,
            "methods": [method.name for method in experiment.methods],
            "cells": len(experiment.cells()),
            "estimate_seconds": experiment.estimate_seconds() / cores,
            "quick_cells": len(experiment.quick_version().cells()),
            "quick_estimate_seconds": experiment.quick_version().estimate_seconds() / cores,
        }
        for experiment in experiments
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    from prudent.bench._report import duration

    console = Console()
    has_titles = console.width >= 110
    table = Table()
    # The names are to be typed, so they are never shortened.
    table.add_column("name", no_wrap=True, overflow="ignore", min_width=max(len(row["name"]) for row in rows))
    for head in (*(["title"] if has_titles else []), "methods", "cells", f"time, {cores} cores", "quick"):
        table.add_column(head)
    for row in rows:
        times = duration(row["estimate_seconds"]), duration(row["quick_estimate_seconds"])
        title = [row["title"]] if has_titles else []
        table.add_row(row["name"], *title, str(len(row["methods"])), str(row["cells"]), *times)
    console.print(table)


@app.command("run")
def run_experiments(
    names: Annotated[list[str] | None, typer.Argument(help="Names or patterns such as 'iv/*'.")] = None,
    runs: Annotated[int | None, typer.Option(help="Runs per cell, seeds 0..RUNS-1; default: the definition's.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings: a check that everything works.")] = False,
    engine: Annotated[str, typer.Option(help="'local' (processes) or 'ray' (cluster at RAY_ADDRESS).")] = "local",
    workers: Annotated[int | None, typer.Option(help="Cells at a time; default: one per core.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run only what the records in OUT do not have.")] = False,
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="With --resume: also failed cells.")] = False,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method of each experiment; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("bench-out"),
    as_json: Json = False,
) -> None:
    """Run experiments; each finished cell is one JSON line under OUT."""
    if retry_errors and not resume:
        raise bench.BenchError("--retry-errors works on existing records: add --resume")
    if not names and not quick:
        hours = sum(experiment.estimate_seconds() for experiment in bench.find([])) / 3600
        raise bench.BenchError(f"name what to run, see 'bench list'; '*' runs everything, {hours:.0f} hours of a core")
    experiments = bench.find(names or [])
    try:
        new = bench.run(
            experiments,
            out,
            runs=runs,
            quick=quick,
            engine=engine,
            workers=workers,
            resume=resume,
            retry_errors=retry_errors,
            methods=methods or None,
        )
    except KeyboardInterrupt:
        typer.echo(f"interrupted; what is done is in {out}, continue with --resume", err=True)
        raise typer.Exit(130) from None
    sweeps = bench.load_folder(out, list(new))
    outcomes = [_outcome(sweep) | {"new": new[sweep.experiment.name]} for sweep in sweeps]
    if as_json:
        typer.echo(json.dumps(outcomes, indent=2))
    else:
        for state, sweep in zip(outcomes, sweeps, strict=True):
            ran = f" ({state['new']} now)" if resume else ""
            missing = f", {state['missing']} missing" if state["missing"] else ""
            typer.echo(f"{state['experiment']}: {state['done']} cells done{ran}, {state['failed']} failed{missing}")
            for entry in sweep.errors()[:1]:
                typer.echo(f"  first failure: {entry['key']}: {entry['error']['type']}: {entry['error']['message']}")
        typer.echo(f"next: prudent bench table {out}, prudent bench report {out}")
    if any(state["failed"] for state in outcomes):
        raise typer.Exit(1)


@app.command("table")
def print_tables(
    folder: _Folder,
    experiment: Annotated[str | None, typer.Option(help="Only this experiment.")] = None,
    format: Annotated[str, typer.Option(help="text, md or csv.")] = "text",
    update: Annotated[
        Path | None,
        typer.Option(
            help="Markdown file whose '<!-- bench:NAME -->' blocks are replaced instead; '<!-- bench:NAME METRIC -->' "
            "has the tables of that metric only."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the numbers of a folder, ours beside published ones."""
    if format not in ("text", "md", "csv"):
        raise bench.BenchError(f"the format must be text, md or csv, got {format!r}")
    if update is not None and (as_json or format != "text"):
        raise bench.BenchError("--update writes Markdown: leave out --json and --format")
    sweeps = bench.load_folder(folder, [experiment] if experiment else None)
    if update is not None:
        bench.update_blocks(update, sweeps)
        typer.echo(f"updated {update}")
        return
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(table) for sweep in sweeps for table in bench.tables(sweep)], indent=2))
    elif format == "csv":
        typer.echo(bench.csv_text(sweeps), nl=False)
    elif format == "md":
        typer.echo("\n".join(bench.markdown(sweep) for sweep in sweeps), nl=False)
    else:
        for sweep in sweeps:
            _print_sweep(sweep)


@app.command("report")
def make_report(
    folder: _Folder,
    format: Annotated[str, typer.Option(help="html, md or csv.")] = "html",
    out: Annotated[Path | None, typer.Option(help="File to write; default: FOLDER/report.FORMAT.")] = None,
    as_json: Json = False,
) -> None:
    """Write a report of a folder: one page that needs no network."""
    path = bench.write_report(folder, format=format, out=out)
    typer.echo(json.dumps({"report": str(path)}) if as_json else str(path))


@app.command("figures")
def make_figures(
    folder: _Folder,
    experiment: Annotated[str | None, typer.Option(help="Only this experiment.")] = None,
    format: Annotated[str, typer.Option(help="png, svg or pdf.")] = "png",
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures; default: FOLDER/figures.")] = None,
    as_json: Json = False,
) -> None:
    """Write the figures of a folder as files, for a paper or a page."""
    paths = bench.write_figures(folder, out, [experiment] if experiment else None, format=format)
    typer.echo(json.dumps({"figures": [str(path) for path in paths]}) if as_json else "\n".join(map(str, paths)))


def _outcome(sweep: bench.Sweep) -> dict[str, Any]:
    failed, missing = len(sweep.errors()), len(sweep.missing())
    return {
        "experiment": sweep.experiment.name,
        "done": len(sweep.results) - failed,
        "failed": failed,
        "missing": missing,
    }


def _print_sweep(sweep: bench.Sweep) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from prudent.bench._report import not_reached
    from prudent.bench._table import entry_text, footnotes, margin_texts, row_label

    # A number that is cut reads as another number: columns fold on a terminal, and have room elsewhere.
    console = Console() if sys.stdout.isatty() else Console(width=500)
    for table in bench.tables(sweep):
        # Plain text throughout: Rich would read E[...] as markup.
        shown = Table(title=Text(f"{sweep.experiment.title} ({table.experiment})"), title_justify="left")
        for number, head in enumerate(table.heads):
            shown.add_column(Text(head), justify="right" if number else "left", overflow="fold")
        for row in table.shown:
            cells = [row_label(row), *(entry_text(entry, table) for entry in row.entries), *margin_texts(row, table)]
            shown.add_row(*map(Text, cells), style=None if row.kind == "ours" else "dim")
        console.print(shown)
    for line in [*footnotes(sweep), *not_reached(sweep)]:
        console.print(line, style="dim", highlight=False, markup=False)
    console.print(f"$ {sweep.command}", highlight=False, markup=False)
