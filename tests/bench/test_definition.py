import json
import pickle
from dataclasses import replace

import pytest
import tiny_bench

from prudent import bench


def test_definition_survives_json_and_pickle():
    assert bench.Experiment.from_json(json.loads(json.dumps(tiny_bench.curve.to_json()))) == tiny_bench.curve
    assert pickle.loads(pickle.dumps(tiny_bench.curve)) == tiny_bench.curve
    assert hash(tiny_bench.curve) == hash(replace(tiny_bench.curve))


def test_digest_depends_on_what_decides_the_numbers_only():
    curve = tiny_bench.curve
    same = replace(curve, title="other words", runs=99, grid={"n": (100, 400, 1600)}, references=())
    assert same.digest("good") == curve.digest("good")
    changed = [
        replace(curve, budget={"sleep": 1.0}),
        replace(curve, version=2),
        replace(curve, run_cell="tiny_bench:return_nan"),
        curve.quick_version(),
    ]
    assert all(other.digest("good") != curve.digest("good") for other in changed)
    other_good = replace(curve, methods=(replace(curve.methods[0], settings={"scale": 3.0}), curve.methods[1]))
    assert other_good.digest("good") != curve.digest("good")
    assert other_good.digest("bad") == curve.digest("bad")


def test_cells_are_methods_by_points_by_seeds():
    cells = tiny_bench.curve.cells()
    assert len({cell.key for cell in cells}) == len(cells) == 2 * 2 * 5
    assert {cell.seed for cell in cells} == set(range(5))
    assert len(tiny_bench.curve.quick_version().cells()) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Bad Name"}, "lower-case"),
        ({"name": "../up"}, "lower-case"),
        ({"run_cell": "nowhere"}, "module:function"),
        ({"runs": 0}, "at least 1"),
        ({"methods": ()}, "at least one method"),
        ({"methods": tiny_bench.curve.methods[:1] * 2}, "two are called .good."),
    ],
)
def test_bad_definitions_are_refused(change, message):
    with pytest.raises(bench.BenchError, match=message):
        replace(tiny_bench.curve, **change)


def test_registry_finds_built_in_and_registered_experiments():
    names = set(bench.load_all())
    assert {"iv/demand", "rates", "tiny/curve"} <= names
    assert [experiment.name for experiment in bench.find(["tiny/c*"])] == ["tiny/curve"]


def test_registry_refuses_unknown_names_and_modules(monkeypatch):
    with pytest.raises(bench.BenchError, match=r"no experiment is called 'iv/nothing'; take one of .*iv/demand"):
        bench.find(["iv/nothing"])
    monkeypatch.setenv("PRUDENT_BENCH", "no_such_module")
    with pytest.raises(bench.BenchError, match="no_such_module"):
        bench.load_all()


def test_published_numbers_of_built_in_experiments_belong_to_their_grids():
    from prudent.bench._definition import point_label

    for experiment in bench.load_all().values():
        labels = {point_label(point) for point in experiment.points()}
        for ref in experiment.references:
            assert set(ref.values) <= labels
            assert ref.role in ("published", "known") or ref.method in {method.name for method in experiment.methods}
