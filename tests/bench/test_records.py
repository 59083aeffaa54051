import json
import subprocess
import sys

import pytest

from prudent.bench._records import Claims, RecordFile, best_results

WRITER = """
import sys
from pathlib import Path
from prudent.bench._records import RecordFile
file = RecordFile(Path(sys.argv[1]))
for number in range(60):
    file.append({"writer": sys.argv[2], "number": number, "padding": "x" * (97 * number % 5000)})
"""

CLAIMER = """
import sys
from pathlib import Path
from prudent.bench._records import Claims
claims = Claims(Path(sys.argv[1]))
print(claims.take("a cell"), flush=True)
sys.stdin.read()
"""


def test_two_writers_do_not_mix_their_lines(tmp_path):
    path = tmp_path / "records.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, name]) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for name in "ab":
        assert [entry["number"] for entry in entries if entry["writer"] == name] == list(range(60))


def test_torn_last_line_is_ignored_then_repaired(tmp_path):
    path = tmp_path / "records.jsonl"
    RecordFile(path).append({"number": 0})
    with path.open("a") as file:
        file.write('{"number": 1, "torn')
    assert RecordFile(path).read_new() == [{"number": 0}]
    RecordFile(path).append({"number": 2})
    assert path.read_text() == '{"number": 0}\n{"number": 2}\n'


def test_file_of_only_a_torn_line_is_repaired(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"to')
    RecordFile(path).append({"number": 0})
    assert path.read_text() == '{"number": 0}\n'


def test_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    file = RecordFile(path)
    file.append({"number": 0})
    before = path.read_bytes()
    import os

    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
    with pytest.raises(OSError, match="short write"):
        file.append({"number": 1})
    assert path.read_bytes() == before


def test_reading_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "records.jsonl"
    reader, writer = RecordFile(path), RecordFile(path)
    assert reader.read_new() == []
    writer.append({"number": 0})
    assert reader.read_new() == [{"number": 0}]
    writer.append({"number": 1})
    assert reader.read_new() == [{"number": 1}]


def test_damaged_line_in_the_middle_is_skipped_with_a_warning(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"number": 0}\ngarbage\n{"number": 2}\n')
    with pytest.warns(UserWarning, match="not JSON"):
        assert RecordFile(path).read_new() == [{"number": 0}, {"number": 2}]


def test_json_that_is_no_record_is_skipped_with_a_warning(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('null\n123\n{}\n{"kind": "run"}\n{"kind": "plan", "command": "", "experiment": {}}\n')
    with pytest.warns(UserWarning, match="no record"):
        assert [entry["kind"] for entry in RecordFile(path).read_records()] == ["plan"]


def test_claim_is_exclusive_between_processes_and_ends_with_its_holder(tmp_path):
    path = tmp_path / "claims.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", CLAIMER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        claims = Claims(path)
        assert not claims.take("a cell")
        assert claims.take("another cell")
        holder.kill()
        holder.wait()
        assert claims.take("a cell")
        claims.close()


def test_best_result_is_first_success_or_last_error():
    def entry(key, status, number):
        return {"key": key, "status": status, "number": number}

    entries = [entry("a", "error", 0), entry("a", "ok", 1), entry("a", "ok", 2), entry("b", "error", 3)]
    best = best_results([*entries, entry("b", "error", 4)])
    assert (best["a"]["number"], best["b"]["number"]) == (1, 4)
