"""Designs agree with the facts that are known about them."""

import numpy as np
import pytest

from prudent import datasets
from prudent.datasets._demand import psi
from prudent.errors import DataError


def test_psi_has_its_known_range():
    values = psi(np.linspace(0, 10, 100_001))
    assert values.min() == pytest.approx(-3.370, abs=1e-3)
    assert values.max() == pytest.approx(0.083, abs=1e-3)


def test_grid_has_its_known_size_and_spread():
    action, context, truth = datasets.demand_grid()
    assert action.shape == (2800, 1)
    assert context.shape == (2800, 8)
    assert truth.std() == pytest.approx(1.144, abs=1e-3)
    raw = datasets.demand_grid("dfiv")[2]
    np.testing.assert_allclose((raw - 100 + 292.1) / 158, truth)


def test_the_true_function_has_no_error_and_no_confounding():
    data = datasets.make_demand(200_000, seed=1)

    class Truth:
        def effect(self, action, context):
            return data.truth(action, context)

    assert datasets.demand_error(Truth()) == 0.0
    noise = data.outcome[:, 0] - data.truth(data.action, data.context)
    assert noise.std() == pytest.approx(1.0, abs=0.01)
    assert np.corrcoef(noise, data.instruments[:, 0])[0, 1] == pytest.approx(0.0, abs=0.01)
    # Given the context, price and noise share v: correlation rho / sqrt(1 + psi^2) on average.
    v = data.action[:, 0] * 3.7 + 17.779 - 25 - (data.instruments[:, 0] + 3) * psi(data.context[:, 0])
    assert np.corrcoef(noise, v)[0, 1] == pytest.approx(0.9, abs=0.01)


def test_instrument_strength_and_convention():
    weak = datasets.make_demand(50_000, seed=0, iv_strength=0.01)
    assert abs(np.corrcoef(weak.instruments[:, 0], weak.action[:, 0])[0, 1]) < 0.02
    raw = datasets.make_demand(1000, seed=0, convention="dfiv")
    assert raw.context.shape == (1000, 2)
    assert np.std(raw.outcome[:, 0] - raw.truth(raw.action, raw.context)) == pytest.approx(1.0, abs=0.1)
    with pytest.raises(ValueError, match=r"convention must be one of .*'raw'"):
        datasets.make_demand(10, convention="raw")


def test_same_seed_same_data_and_roles_fit_together():
    first, second = datasets.make_demand(50, seed=3), datasets.make_demand(50, seed=3)
    assert np.array_equal(first.outcome, second.outcome)
    assert list(first.frame().columns)[:3] == ["sales", "price", "fuel"]
    assert set(first.roles()) == {"outcome", "action", "instruments", "context"}


def test_curves():
    data = datasets.make_curve(100, curve="abs", seed=0)
    assert "context" not in data.roles()
    np.testing.assert_allclose(data.truth([[-2.0], [3.0]]), [2.0, 3.0])
    with pytest.raises(ValueError, match="curve must be one of"):
        datasets.make_curve(10, curve="cube")


def test_truth_takes_one_action_or_one_context_for_all_rows():
    data = datasets.make_demand(5, seed=0)
    by_row = data.truth(np.full(5, 0.5), data.context)
    np.testing.assert_array_equal(data.truth(0.5, data.context), by_row)
    np.testing.assert_array_equal(data.truth([[0.5], [1.0]], data.context[0])[0], by_row[0])


@pytest.mark.parametrize(
    ("action", "context", "message"),
    [
        (1.0, None, "depends on a context of 8 columns, got none. Give context="),
        (np.zeros(100), lambda c: c.T, "context must have 8 columns as in the design, got 100"),
        (np.zeros(40), lambda c: c[:40, :7], "context must have 8 columns as in the design, got 7"),
        (np.zeros((50, 2)), lambda c: c, "action must have 1 columns as in the design, got 2"),
        (np.zeros(40), lambda c: c, r"equally many rows \(or one\), got 40 and 100"),
        ("a", lambda c: c, "action must be numeric, got 'a'"),
    ],
)
def test_truth_refuses_arrays_of_other_shapes(action, context, message):
    data = datasets.make_demand(100, seed=0)
    with pytest.raises(DataError, match=message):
        data.truth(action, None if context is None else context(data.context))


def test_truth_with_proxies_refuses_arrays_of_other_shapes():
    data = datasets.make_demand_proximal(50, seed=0)
    np.testing.assert_array_equal(data.truth(20.0), data.truth([[20.0]]))
    with pytest.raises(DataError, match="treatment must have 1 columns as in the design, got 2"):
        data.truth([[20.0, 30.0]])
