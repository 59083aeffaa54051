"""A correction of a regression that is linear in given terms."""

import numpy as np
import pytest

from prudent import datasets
from prudent.cmr import DMLCMR, _dmlcmr
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._straight import PENALTIES, StraightCorrection, fit_straight


def linear_design(n: int, seed: int, strength: float = 1.0):
    """(left, x, c, slope): y = 2 x_0 + u, and what its regression on x leaves; c moves x_0, and x_1 is noise."""
    rng = np.random.default_rng(seed)
    c, u, e = rng.normal(size=(3, n, 1))
    x = np.hstack([strength * c + u + e, rng.normal(size=(n, 1))])
    y = 2 * x[:, :1] + u
    slope = np.linalg.lstsq(x, y, rcond=None)[0]
    return y - x @ slope, x, c, slope


def corrected(left, x, c, seed=0, **settings):
    folds = cross_fit_folds(len(x), 5, np.random.default_rng(seed))
    settings = {"terms": lambda a: a, "rows": np.arange(len(x)), "groups": None, **settings}
    return fit_straight(left, x, c, folds, seed=seed, **settings)


def test_it_is_two_stage_least_squares():
    left, x, c, slope = linear_design(4000, seed=0)
    found, rest = corrected(left, x, c)
    instrumented = (c.T @ (x[:, :1] @ slope[:1] + left)) / (c.T @ x[:, :1])
    # The column that c does not move keeps its coefficient: what nothing asks for is not corrected.
    np.testing.assert_allclose((slope + found.weight)[:, 0], [instrumented.item(), 0.0], atol=0.05)
    assert abs(np.mean(rest * c)) < 4 * rest.std() / np.sqrt(len(c))


def test_what_the_instruments_do_not_move_is_left_alone():
    left, x, c, _ = linear_design(2000, seed=1, strength=0.0)
    found, _ = corrected(left, x, c)
    assert np.abs(found.weight).max() < 0.3


def test_rows_that_do_not_count_have_no_influence():
    left, x, c, _ = linear_design(1000, seed=2)
    rows = np.arange(800)
    found, rest = corrected(left, x, c, rows=rows)
    wild = np.where(np.arange(1000)[:, None] < 800, x, 1e3)
    again, _ = corrected(left, wild, c, rows=rows)
    np.testing.assert_array_equal(found.weight, again.weight)
    assert len(rest) == 800
    # Beyond what was seen terms are held.
    np.testing.assert_allclose(found.predict(np.full((1, 2), 1e6)), found.predict(x[:800].max(axis=0)[None]))


def test_a_constant_outcome_and_a_constant_term_are_no_obstacle():
    left, x, c, _ = linear_design(400, seed=3)
    both = np.hstack([left, np.zeros_like(left)])
    found, _ = corrected(both, np.hstack([x, np.ones((400, 1))]), c)
    assert np.isfinite(found.weight).all()
    np.testing.assert_array_equal(found.weight[:, 1], 0.0)


def test_penalties_grow():
    assert (np.diff(PENALTIES) > 0).all()


def test_dml_cmr_needs_no_network_where_a_line_does(quick_estimator):
    design = datasets.make_linear_gaussian(1500, seed=1, confounding=2.0)
    y, x, c = (
        design.outcome,
        np.hstack([design.action, design.context]),
        np.hstack([design.instruments, design.context]),
    )
    model = quick_estimator(start="tested", correction_terms=lambda rows: rows).fit(y, x, c, seed=0)
    plain = quick_estimator(start="tested").fit(y, x, c, seed=0)
    assert (model.report_.correction, plain.report_.correction) == ("straight", "made")
    truth = design.truth(design.action, design.context)
    assert np.mean((model.predict(x)[:, 0] - truth) ** 2) < np.mean((model.function_.predict(x)[:, 0] - truth) ** 2) / 4


def test_where_no_term_is_moved_nothing_is_said_to_be_corrected(quick_estimator, monkeypatch):
    monkeypatch.setattr(_dmlcmr, "_speaks_against", lambda moment, errors: errors == 1)
    left, x, c, _ = linear_design(400, seed=5)
    model = quick_estimator(start="tested", correction_terms=lambda rows: 0.0 * rows).fit(left, x, c, seed=0)
    assert not model.straight_.weight.any()
    assert model.report_.correction == "not needed"


@pytest.mark.parametrize(
    "settings",
    [
        {"start": None},
        {"start": "zero"},
        {"start": "regression"},
        {"start": "context"},
        {"start": "tested", "n_folds": 1},
    ],
)
def test_terms_that_would_be_ignored_are_refused(settings, quick_estimator):
    left, x, c, _ = linear_design(100, seed=6)
    with pytest.raises(ValueError, match="correction_terms are tried with start='tested' and two folds or more"):
        quick_estimator(correction_terms=np.sin, **settings).fit(left, x, c, seed=0)


def test_a_saved_correction_waits_for_its_terms(quick_estimator):
    left, x, c, _ = linear_design(400, seed=4)
    found, _ = corrected(left, x, c)
    again = StraightCorrection.from_arrays(found.to_arrays())
    np.testing.assert_array_equal(again.weight, found.weight)
    with pytest.raises(ValueError, match="must know its terms"):
        again.predict(x)
    assert "correction_terms" in DMLCMR().get_params()
