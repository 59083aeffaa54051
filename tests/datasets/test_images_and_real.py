"""Designs with images, real covariates and context-dependent actions: formulae, splits, moments, bad input."""

import gzip

import numpy as np
import pytest

from prudent import datasets
from prudent.datasets._demand import psi
from prudent.datasets._digits import _load, digit_images
from prudent.datasets._semisynthetic import raw_effect
from prudent.errors import DataError


class Truth:
    def __init__(self, data):
        self.effect = data.truth


# Demand: contexts, strengths and bounds


def test_demand_contexts_in_and_out_of_distribution():
    data = datasets.make_demand(10, seed=0)
    inside, outside = (data.contexts(5000, seed=1, shifted=s) for s in (False, True))
    assert 0 < inside[:, 0].min() < inside[:, 0].max() < 10
    assert 1 < outside[:, 0].min() < 1.01
    assert 10.9 < outside[:, 0].max() < 11
    np.testing.assert_array_equal(inside[:, 1:].sum(axis=1), 1)
    # The lowest price is best in distribution: its mean value is known.
    assert data.truth(-3.0, inside).mean() == pytest.approx(0.748, abs=0.02)
    assert data.action_range == (-3.0, 3.0)


@pytest.mark.parametrize("strength", [1.0, 0.8, 0.6, 0.4, 0.2, 0.01])
def test_strength_scales_the_instrument_only(strength):
    data = datasets.make_demand(20_000, seed=2, iv_strength=strength)
    t, z = data.context[:, 0], data.instruments[:, 0]
    rest = data.action[:, 0] * 3.7 + 17.779 - 25 - 3 * psi(t)
    assert (rest @ (z * psi(t))) / np.sum((z * psi(t)) ** 2) == pytest.approx(strength, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "n must be a whole number of at least 1, got 0"),
        ({"n": 2.5}, "n must be a whole number"),
        ({"rho": 1.5}, r"rho must be a correlation in \[-1, 1\], got 1.5"),
        ({"iv_strength": np.nan}, "iv_strength must be finite"),
    ],
)
def test_bad_demand(settings, message):
    for make in (datasets.make_demand, datasets.make_demand_images):
        with pytest.raises(ValueError, match=message):
            make(**{"n": 10, **settings})


@pytest.mark.parametrize("make", [datasets.make_curve, datasets.make_linear_gaussian, datasets.make_demand_proximal])
def test_every_design_checks_rows_and_seed(make):
    for n in (-3, 0, 2.5, True):
        with pytest.raises(ValueError, match="n must be a whole number of at least 1, got"):
            make(n)
    for seed in (-1, 0.5, None):
        with pytest.raises(ValueError, match="seed must be a whole number of at least 0, got"):
            make(10, seed=seed)


# Images


def test_digits_design_is_the_demand_design_with_pictures():
    data = datasets.make_demand_images(2000, seed=0, images="digits")
    collection = digit_images("digits")
    assert data.context.shape == (2000, 65)
    assert data.names["context"][:2] == ["time", "digits_000"]
    assert data.roles()["images"] == (8, 8)
    assert data.context[:, 1:].min() == 0
    assert data.context[:, 1:].max() == 1
    s = collection.read(data.context[:, 1:])
    assert set(s) == set(range(1, 8))
    price, t = data.action[:, 0] * 3.7 + 17.779, data.context[:, 0]
    raw = (10 + price) * s * psi(t) - 2 * price
    np.testing.assert_allclose(data.truth(data.action, data.context), (raw + 292.1) / 158)
    noise = data.outcome[:, 0] - data.truth(data.action, data.context)
    assert noise.std() == pytest.approx(1.0, abs=0.05)
    # Images of the log are training images; those of the grid and of fresh contexts are test images.
    known = {image.tobytes() for image in (collection.images["train"] / 16).reshape(-1, 64)}
    assert all(row.tobytes() in known for row in np.ascontiguousarray(data.context[:, 1:]))
    fresh = data.contexts(300, seed=0)
    held = {image.tobytes() for image in (collection.images["test"] / 16).reshape(-1, 64)}
    assert all(row.tobytes() in held for row in np.ascontiguousarray(fresh[:, 1:]))
    action, _, truth = datasets.demand_images_grid("digits")
    assert action.shape == (2800, 1)
    np.testing.assert_allclose(truth, datasets.demand_grid()[2])
    assert datasets.demand_images_error(Truth(data), images="digits") == pytest.approx(0.0, abs=1e-20)
    with pytest.raises(DataError, match="not one of the digits images"):
        data.truth(0.0, np.full((1, 65), 0.5))


def test_images_of_a_digit_repeat_only_when_all_were_used():
    collection = digit_images("digits")
    stock = int(np.sum(collection.labels["train"] == 3))
    drawn = collection.draw("train", np.full(stock, 3), np.random.default_rng(0))
    assert len(np.unique(drawn, axis=0)) == len(
        np.unique(collection.images["train"][collection.labels["train"] == 3], axis=0)
    )


def test_without_mnist_auto_takes_the_bundled_digits(monkeypatch, tmp_path):
    monkeypatch.delenv("PRUDENT_DATA", raising=False)
    assert datasets.make_demand_images(5).names["context"][1] == "digits_000"
    with pytest.raises(DataError, match=r"MNIST is read from the folder that PRUDENT_DATA names.*images='digits'"):
        datasets.make_demand_images(5, images="mnist")
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path))
    with pytest.raises(DataError, match="there is no such file"):
        datasets.make_demand_images(5, images="mnist")
    with pytest.raises(ValueError, match="images must be 'auto' or one of"):
        datasets.make_demand_images(5, images="cifar")


def test_mnist_files_are_read_and_damaged_ones_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        images, labels = rng.integers(256, size=(14, 28, 28), dtype=np.uint8), np.repeat(np.arange(1, 8), 2)
        content = bytes([0, 0, 8, 3]) + np.array([14, 28, 28], ">i4").tobytes() + images.tobytes()
        (tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        plain = bytes([0, 0, 8, 1]) + np.array([14], ">i4").tobytes() + labels.astype(np.uint8).tobytes()
        (tmp_path / "mnist" / f"{part}-labels-idx1-ubyte").write_bytes(plain)
    data = datasets.make_demand_images(20, seed=0)
    assert data.context.shape == (20, 785)
    assert np.isfinite(data.truth(data.action, data.context)).all()
    _load.cache_clear()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x09")
    with pytest.raises(DataError, match="not an IDX file of bytes with 1 axes, or is truncated"):
        datasets.make_demand_images(20, seed=0)
    _load.cache_clear()


def test_real_mnist(data_folder):
    data = datasets.make_demand_images(50, seed=0, images="mnist")
    assert data.images == (28, 28)
    assert digit_images("mnist").images["train"].shape == (60_000, 28, 28)


# IHDP and PM-CMR


def _recomputed(seed, x, n_domains=5):
    """Straight from the formulae, row by row."""
    b = [0, 1, 0, -0.2, -0.8]
    c = [
        [0.8, -0.2, -0.2, -0.4, -0.7, -0.1],
        [0.2, -0.9, 0.8, -0.9, 0.4, -0.9],
        [-0.8, 0.0, 0.8, -0.1, 0.3, 0.6],
        [-0.2, -0.8, 0.7, 0.9, 0.9, 0.4],
        [-1.0, -0.2, -0.5, -0.6, -0.9, 0.0],
    ]
    return [
        b[int(z)] + sum(ci * xi for ci, xi in zip(c[int(z)], row, strict=True)) for z, row in zip(seed, x, strict=True)
    ]


@pytest.mark.parametrize("make", [datasets.make_ihdp, datasets.make_pm_cmr])
def test_semisynthetic_designs_follow_their_formulae(make, request):
    sizes = (470, 202, 75)
    if make is datasets.make_pm_cmr:
        request.getfixturevalue("data_folder")
        sizes = (1343, 575, 214)
    data = make(seed=3)
    parts = [data, data.validation, data.test]
    assert tuple(len(part.outcome) for part in parts) == sizes
    x = np.concatenate([part.context for part in parts])
    assert np.abs(x).max() <= 3
    assert len(np.unique(x, axis=0)) > 0.95 * len(x)
    z = np.concatenate([part.instruments for part in parts])[:, 0]
    t = np.concatenate([part.action for part in parts])[:, 0]
    assert set(z) == {0, 1, 2, 3, 4}
    own = t - _recomputed(z, x)
    assert own.std() == pytest.approx(np.hypot(0.2, 0.1), rel=0.1)
    y = np.concatenate([part.outcome for part in parts])[:, 0]
    noise = y - np.concatenate([part.truth(part.action, part.context) for part in parts])
    v = raw_effect(t, x)
    i = 7
    by_hand = -1.5 * t[i] + 0.9 * t[i] ** 2 + 2 / 6 * x[i].sum() - abs(x[i, 0] * x[i, 1]) - np.sin(10 + x[i, 2] ** 2)
    assert v[i] == pytest.approx(by_hand)
    truth = np.concatenate([part.truth(part.action, part.context) for part in parts])
    scale = v.std() / truth.std()
    # Noise is 2 u + N(0, 0.1), the action's own part 0.2 u + N(0, 0.1).
    assert (noise * scale).std() == pytest.approx(2.0, rel=0.1)
    assert np.corrcoef(noise, own)[0, 1] == pytest.approx(0.2 / np.hypot(0.2, 0.1), abs=0.04)
    assert data.outcome.mean() == pytest.approx(0, abs=1e-12)
    assert data.outcome.std() == pytest.approx(1)
    # The best action is the upper end for every unit.
    for part in parts:
        ends = np.stack([part.truth(a, part.context) for a in np.linspace(-3, 5, 81)])
        assert np.all(ends.argmax(axis=0) == 80)
    assert datasets.ihdp_error(Truth(data), data) == 0.0
    assert datasets.pm_cmr_error(Truth(data), data, split="validation") == 0.0


def test_ihdp_covariates_are_the_published_ones():
    data = datasets.make_ihdp(seed=0)
    x = np.concatenate([p.context for p in (data, data.validation, data.test)])
    assert x.shape == (747, 6)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=0.02)
    # Birth weights are 540 to 2500 g, mean 1803.5, standard deviation 462.6: no value is clipped there.
    assert x[:, 0].min() == pytest.approx((540 - 1803.54083) / 462.617337, abs=1e-6)
    assert x[:, 0].max() == pytest.approx((2500 - 1803.54083) / 462.617337, abs=1e-6)
    assert x[:, 4].min() == -3.0
    assert not np.array_equal(datasets.make_ihdp(seed=1).context, data.context)
    assert set(datasets.make_ihdp(n_domains=3).instruments[:, 0]) == {0, 1, 2}
    with pytest.raises(ValueError, match="n_domains must be a whole number from 2 to 5, got 6"):
        datasets.make_ihdp(n_domains=6)
    with pytest.raises(ValueError, match=r"n_domains must be a whole number from 2 to 5, got 2.5"):
        datasets.make_ihdp(n_domains=2.5)
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0, got -1"):
        datasets.make_ihdp(seed=-1)
    with pytest.raises(ValueError, match="split must be one of"):
        datasets.ihdp_error(Truth(data), data, split="holdout")
    with pytest.raises(ValueError, match="draws no fresh contexts"):
        data.contexts(5, seed=0)


def test_pm_cmr_says_what_it_needs(monkeypatch, tmp_path):
    monkeypatch.delenv("PRUDENT_DATA", raising=False)
    with pytest.raises(DataError, match=r"county table of PM-CMR.*PRUDENT_DATA is not set.*10\.23719/1506014"):
        datasets.make_pm_cmr()
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path))
    with pytest.raises(DataError, match="there is no such file"):
        datasets.make_pm_cmr()
    (tmp_path / "pm_cmr_counties.csv").write_text("FIPS,civil_unemploy_2000\n1,2\n")
    with pytest.raises(DataError, match="it has no 'median_HH_inc_2000'"):
        datasets.make_pm_cmr()


# Pricing


def test_pricing_has_the_optimum_and_the_bias_that_its_text_says():
    data = datasets.make_pricing(200_000, seed=0)
    contexts = data.contexts(50_000, seed=1)
    best = datasets.best_price(contexts)
    assert np.abs(best).max() < 3
    assert data.truth(best, contexts).mean() == pytest.approx(2.0, abs=0.01)
    assert np.mean(best**2) == pytest.approx(0.87, abs=0.01)
    season, wealth, _ = data.context.T
    habit = -0.5 * np.sin(2 * np.pi * season) + 0.5 * wealth
    push = data.action[:, 0] - habit
    assert push.var() == pytest.approx(2.09, abs=0.02)
    noise = data.outcome[:, 0] - data.truth(data.action, data.context)
    # A regression that ignores the instrument adds kappa (P - h) / 2.09 to f.
    assert (noise @ push) / (push @ push) == pytest.approx(4 / 2.09, abs=0.02)
    assert np.corrcoef(noise, data.instruments[:, 0])[0, 1] == pytest.approx(0, abs=0.01)
    wrong = best + 4 / 2.09 / 2
    assert 2.0 - data.truth(wrong, contexts).mean() == pytest.approx(0.916, abs=0.01)
    # Of what the cost leaves of the price, the hidden demand is the most.
    rest = push - data.instruments[:, 0]
    assert (noise @ rest) / (rest @ rest) == pytest.approx(4 / 1.09, abs=0.02)
    wrong = np.clip(best + 4 / 1.09 / 2, -3, 3)
    assert 2.0 - data.truth(wrong, contexts).mean() == pytest.approx(3.229, abs=0.03)
    assert datasets.pricing_error(Truth(data)) == 0.0
    assert datasets.pricing_grid()[0].shape == (5600, 1)
    assert np.abs(datasets.best_price(data.contexts(10_000, seed=1, shifted=True))).max() < 3
    with pytest.raises(ValueError, match="confounding must be finite"):
        datasets.make_pricing(10, confounding=np.inf)
