"""Tables, report and command line."""

import csv
import io
import json
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_bench

from prudent import bench
from prudent.bench._definition import CPU_SECONDS
from prudent.bench._report import not_reached
from prudent.cli import main


class Call(NamedTuple):
    code: int | str
    output: str
    error: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    bench.run([tiny_bench.curve, tiny_bench.raises], folder)
    return folder


@pytest.fixture
def call(monkeypatch, capsys):
    """``prudent bench ARGS`` in this process: exit code, standard output and standard error."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["prudent", "bench", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return Call(stop.value.code or 0, out, err)

    return call


def test_table_shows_medians_beside_references(folder):
    (sweep,) = bench.load_folder(folder, ["tiny/curve"])
    (table,) = bench.tables(sweep)
    assert table.columns == ("n=100", "n=400")
    good, bad, _, _, elsewhere = table.rows
    values = sorted(sweep.values("good", {"n": 100}, "error"))
    assert good.entries[0].value == values[2]
    assert good.entries[0].runs == 5
    assert [entry.reached for entry in good.entries] == [True, True]
    assert [entry.reached for entry in bad.entries] == [None, False]
    assert [entry.value for entry in elsewhere.entries] == [0.3, None]
    assert good.slope is not None
    assert abs(good.slope[0] + 0.5) < 3 * good.slope[1]


def test_means_and_when_the_mean_curve_arrives(tmp_path):
    bench.run([tiny_bench.means], tmp_path)
    (sweep,) = bench.load_folder(tmp_path)
    error, when = bench.tables(sweep)
    values = sweep.values("good", {"n": 100}, "error")
    entry = error.rows[0].entries[0]
    assert entry.value == pytest.approx(statistics.fmean(values))
    assert entry.high - entry.value == pytest.approx(statistics.stdev(values))
    curves = sweep.values("good", {"n": 100}, "probability")
    mean = [statistics.fmean(column) for column in zip(*curves, strict=True)]
    assert when.rows[0].entries[0].value == next(step for step in (1, 2, 3) if mean[step - 1] >= mean[-1] - 0.05)
    assert error.heads == ("error", "n=100", "published")
    assert error.rows[0].published == 0.3
    assert len(error.rows) == 1
    assert "published,n=100,,0.3" in bench.csv_text([sweep])
    text = bench.markdown(sweep)
    assert f"{entry.value:.4f} ± {statistics.stdev(values):.4f}" in text
    assert "mean ± standard deviation" in text


def test_what_is_the_same_for_all_methods_stands_once(folder):
    (sweep,) = bench.load_folder(folder, ["tiny/curve"])
    (table,) = bench.tables(sweep)
    good, bad, *others = table.rows
    context = replace(table, metric=replace(table.metric, better=""))
    assert context.shown == context.rows
    alike = replace(context, rows=(good, replace(bad, entries=good.entries), *others))
    assert [row.label for row in alike.shown] == ["the same for all", *(row.label for row in others)]
    # Runs of another machine differ in the last digits.
    rounded = tuple(replace(entry, value=entry.value * (1 + 1e-9)) for entry in good.entries)
    machines = replace(context, rows=(good, replace(bad, entries=rounded), *others))
    assert machines.shown[0].label == "the same for all"
    judged = replace(alike, metric=table.metric)
    assert judged.shown == judged.rows


def test_one_target_of_two_methods_stands_once_and_judges_both(folder):
    (sweep,) = bench.load_folder(folder, ["tiny/curve"])
    shared = [replace(sweep.experiment.references[0], method=method) for method in ("good", "bad")]
    (table,) = bench.tables(replace(sweep, experiment=replace(sweep.experiment, references=tuple(shared))))
    assert [row.kind for row in table.rows] == ["ours", "ours", "target"]
    assert all(entry.reached is not None for row in table.rows[:2] for entry in row.entries)


def test_runs_recorded_before_a_metric_was_added_are_passed_over(folder):
    (sweep,) = bench.load_folder(folder, ["tiny/curve"])
    assert sweep.values("good", {"n": 100}, "added later") == []


def test_slope_agrees_with_least_squares(folder):
    np = pytest.importorskip("numpy")
    (sweep,) = bench.load_folder(folder, ["tiny/curve"])
    pairs = [(n, value) for n in (100, 400) for value in sweep.values("bad", {"n": n}, "error")]
    x, y = np.log(np.array(pairs)).T
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    row = bench.tables(sweep)[0].rows[1]
    assert row.slope == pytest.approx((slope, covariance[0, 0] ** 0.5))


def test_markdown_is_deterministic_and_names_its_command(call, folder):
    first = call("table", folder, "--experiment", "tiny/curve", "--format", "md")
    assert first.code == 0
    assert first.output == call("table", folder, "--experiment", "tiny/curve", "--format", "md").output
    assert "| Good method | 0." in first.output
    assert "✗" in first.output
    assert "`prudent bench run tiny/curve --runs 5`" in first.output


def test_csv_has_one_line_per_number(call, folder):
    rows = list(csv.DictReader(io.StringIO(call("table", folder, "--format", "csv").output)))
    assert len(rows) == 5 * 2 + 1 + 2
    assert {row["experiment"] for row in rows} == {"tiny/curve", "tiny/raises"}


def test_text_and_json_tables(call, folder):
    assert "Bad method" in call("table", folder).output
    tables = json.loads(call("table", folder, "--json").output)
    assert [table["experiment"] for table in tables] == ["tiny/curve", "tiny/raises"]


def test_readme_block_is_replaced(call, folder, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bench:tiny/curve -->\nold\n<!-- /bench -->\nafter\n")
    for _ in range(2):
        assert call("table", folder, "--experiment", "tiny/curve", "--update", readme).code == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- bench:tiny/curve -->\n\n| error |")
    assert text.endswith("<!-- /bench -->\nafter\n")
    assert "old" not in text
    assert text.count("| Good method |") == 1
    readme.write_text("no block")
    result = call("table", folder, "--experiment", "tiny/curve", "--update", readme)
    assert result.code == 2
    assert "must have one block" in result.error


def test_a_block_may_name_its_metrics(tmp_path, call):
    bench.run([replace(tiny_bench.slow, metrics=(*tiny_bench.slow.metrics, CPU_SECONDS))], tmp_path, runs=1)
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:tiny/slow error -->\n<!-- /bench -->\n")
    assert call("table", tmp_path, "--update", page).code == 0
    assert "| error |" in page.read_text()
    assert "CPU seconds" not in page.read_text()
    page.write_text("<!-- bench:tiny/slow error what -->\n<!-- /bench -->\n")
    assert "has no table of 'what'; it has error, cpu_seconds" in call("table", tmp_path, "--update", page).error


def test_report_is_self_contained(call, folder):
    result = call("report", folder)
    assert result.code == 0
    page = (folder / "report.html").read_text()
    assert not re.search(r"https?:|//[a-z]|<script|<link|@import|url\((?!#)", page)
    assert page.count("<svg") == 3
    assert "prefers-color-scheme: dark" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    targets = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page))
    assert {a or b for a, b in targets} <= set(ids)
    clips = [identifier for identifier in ids if identifier.startswith(("p", "m")) and len(identifier) == 11]
    assert len(clips) == len(set(clips))


def test_figures_as_files(call, folder, tmp_path):
    out = tmp_path / "pictures"
    for format, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        first, again = (
            [
                Path(name).read_bytes()
                for name in call("figures", folder, "--out", out, "--format", format).output.split()
            ]
            for _ in range(2)
        )
        assert len(first) == 3
        assert first == again
        assert all(content.startswith(start) for content in first)
    result = call("figures", folder, "--format", "gif")
    assert result.code == 2
    assert "must be one of png, svg, pdf, got 'gif'" in result.error
    assert not (folder / "figures").exists()


def test_report_says_what_was_not_reached(folder):
    for format in ("html", "md"):
        path = bench.write_report(folder, format=format)
        text = path.read_text()
        assert "target missed: Bad method against hard target (error): n=400" in text
        assert "1 of 3 cells failed" in text
    assert "seed one is &lt;unlucky&gt;" in (folder / "report.html").read_text()
    assert "seed one is <unlucky>" not in (folder / "report.html").read_text()


def test_quick_run_is_not_judged(call, tmp_path):
    result = call("run", "tiny/curve", "--quick", "--out", tmp_path, "--json")
    assert result.code == 0
    assert json.loads(result.output)[0]["done"] == 2
    assert "target missed" not in bench.write_report(tmp_path, format="md").read_text()


def test_incomplete_sweep_reports_missing_cells(tmp_path):
    bench.run([tiny_bench.curve], tmp_path, runs=2)
    path = tmp_path / "tiny" / "curve.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    assert "3 of 8 cells have not run" in bench.write_report(tmp_path, format="md").read_text()


def test_list_shows_estimates(call):
    rows = json.loads(call("list", "--json").output)
    assert {"iv/demand", "rates", "tiny/curve"} <= {row["name"] for row in rows}
    assert all(row["estimate_seconds"] > 0 for row in rows)
    assert "iv/demand" in call("list").output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "no/such"], "no experiment is called 'no/such'"),
        (["run", "tiny/curve", "--runs", "0"], "at least 1, got 0"),
        (["run", "tiny/curve", "--workers", "0"], "workers must be at least 1, got 0"),
        (["run", "tiny/curve", "--engine", "cloud"], "one of local, ray, got 'cloud'"),
        (["run", "tiny/curve", "--retry-errors"], "add --resume"),
        (["table", "{tmp}/nowhere"], "no such folder"),
        (["table", "{tmp}"], "no records in"),
        (["table", "{tmp}", "--format", "xls"], "got 'xls'"),
        (["report", "{tmp}", "--format", "pdf"], "got 'pdf'"),
    ],
)
def test_bad_input_gives_one_line_and_code_two(call, args, message, tmp_path):
    out = ["--out", tmp_path / "out"] if args[0] == "run" else []
    result = call(*(arg.format(tmp=tmp_path) for arg in args), *out)
    assert result.code == 2
    assert message in result.error
    assert len(result.error.splitlines()) == 1
    assert not result.output
    assert not (tmp_path / "out").exists()


def test_unwritable_folder_gives_one_line(call, tmp_path):
    (tmp_path / "file").touch()
    result = call("run", "tiny/curve", "--out", tmp_path / "file")
    assert result.code == 2
    assert len(result.error.splitlines()) == 1


def test_importing_the_package_loads_no_numerics():
    code = "import sys, prudent.cli._bench; sys.exit(bool({'numpy', 'jax', 'matplotlib', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_report_makes_its_folder_and_records_are_a_folder(folder, tmp_path, call):
    assert call("report", folder, "--format", "md", "--out", tmp_path / "new" / "page.md").code == 0
    assert (tmp_path / "new" / "page.md").stat().st_size > 100
    wrong = call("table", tmp_path / "new" / "page.md")
    assert wrong.code == 2
    assert "is a file; give the folder of records" in wrong.error


def test_resume_says_what_is_new(tmp_path):
    (name,) = bench.run([tiny_bench.curve], tmp_path, runs=1)
    first = bench.run([tiny_bench.curve], tmp_path, runs=2, resume=True)
    assert first[name] == len(tiny_bench.curve.methods) * 2
    assert bench.run([tiny_bench.curve], tmp_path, runs=2, resume=True) == {name: 0}


def test_update_writes_all_blocks_or_none(folder, tmp_path, call):
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:tiny/curve -->\nold\n<!-- /bench -->\n")
    refused = call("table", folder, "--update", page)
    assert refused.code == 2
    assert "tiny/raises" in refused.error
    assert "old" in page.read_text()
    assert call("table", folder, "--update", page, "--json").code == 2


def test_labels_are_plain_text_in_every_format(tmp_path, call):
    odd = replace(tiny_bench.curve.metrics[0], label="E[a | b]")
    bench.run([replace(tiny_bench.curve, metrics=(odd, *tiny_bench.curve.metrics[1:]))], tmp_path, runs=1)
    assert "E[a | b]" in call("table", tmp_path).output
    assert "| E[a \\| b] |" in call("table", tmp_path, "--format", "md").output


def test_targets_need_all_runs(tmp_path):
    """A median over the runs that did not fail is no proof."""
    bench.run([tiny_bench.curve], tmp_path)
    path = tmp_path / "tiny/curve.jsonl"
    lines = path.read_text().splitlines()
    failing = next(i for i, line in enumerate(lines) if '"method": "good"' in line and '"n": 100' in line)
    entry = json.loads(lines[failing])
    del entry["metrics"]
    lines[failing] = json.dumps(entry | {"status": "error", "error": {"type": "E", "message": "m", "traceback": ""}})
    path.write_text("\n".join(lines) + "\n")
    (sweep,) = bench.load_folder(tmp_path)
    (table,) = bench.tables(sweep)
    assert table.rows[0].entries[0].reached is None
    assert any("not shown" in line for line in not_reached(sweep))
    assert "4 to 5 runs, seeds from 0, 1 failed" in bench.markdown(sweep)


def test_report_passes_over_runs_without_a_curve(tmp_path):
    bench.run([tiny_bench.curve], tmp_path)
    path = tmp_path / "tiny/curve.jsonl"
    path.write_text(path.read_text().replace('"probability"', '"former"', 1))
    assert bench.write_report(tmp_path).stat().st_size > 1000


def test_a_failed_cell_is_an_exit_code(folder, tmp_path, monkeypatch, call):
    monkeypatch.setenv("PRUDENT_BENCH", "tiny_bench")
    done = call("run", "tiny/raises", "--out", tmp_path)
    assert done.code == 1
    assert "first failure" in done.output
