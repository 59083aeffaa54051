"""Experiments as data: define, run, resume, scale out, tabulate and report them.

An experiment is one frozen `Experiment`; the runner turns it into cells (method x grid point x seed), an engine (local
processes or Ray) executes them, every finished cell is one JSON line in ``OUT/<experiment>.jsonl``, and tables, figures
and the report are made from these lines only.

Modules named in the environment variable ``PRUDENT_BENCH`` (comma separated) contribute their `Experiment` objects next
to the built-in ones of `prudent.bench.experiments`.
"""

from prudent.bench._definition import BenchError, Experiment, Figure, Method, Metric, Quick, Reference, Task
from prudent.bench._figures import write_figures
from prudent.bench._folder import Sweep, load_folder
from prudent.bench._registry import find, load_all
from prudent.bench._report import write_report
from prudent.bench._runner import run
from prudent.bench._table import Table, csv_text, markdown, tables, update_blocks

__all__ = [
    "BenchError",
    "Experiment",
    "Figure",
    "Method",
    "Metric",
    "Quick",
    "Reference",
    "Sweep",
    "Table",
    "Task",
    "csv_text",
    "find",
    "load_all",
    "load_folder",
    "markdown",
    "run",
    "tables",
    "update_blocks",
    "write_figures",
    "write_report",
]
