"""Designs with proxies agree with their closed forms, and the drawn hearts with geometry."""

import numpy as np
import pytest

from prudent import datasets
from prudent.datasets._demand import psi
from prudent.errors import DataError


def test_demand_curve_agrees_with_simulation():
    rng = np.random.default_rng(0)
    hidden = psi(rng.uniform(0, 10, 400_000))
    proxy = 7 * hidden + 45 + rng.standard_normal(len(hidden))
    price, truth = datasets.demand_proximal_grid()
    assert price[:, 0].tolist() == pytest.approx(np.linspace(10, 30, 10).tolist())
    for a, value in zip(price[:, 0], truth, strict=True):
        draws = a * np.minimum(np.exp((proxy - a) / 10), 5) - 5 * hidden
        assert abs(draws.mean() - value) < 4 * draws.std() / np.sqrt(len(draws))


def test_demand_bridge_solves_the_moment():
    data = datasets.make_demand_proximal(200_000, seed=1)
    residual = data.outcome[:, 0] - data.bridge(data.treatment, data.outcome_proxy)
    conditions = np.column_stack([np.ones(len(residual)), data.treatment, data.treatment_proxy, data.treatment**2])
    t = conditions.T @ residual / np.linalg.norm(conditions * residual[:, None], axis=0)
    assert np.abs(t).max() < 4
    # And it is not a regression on (A, W): the residual moves with W.
    assert np.corrcoef(residual, data.outcome_proxy[:, 0])[0, 1] > 0.05


def test_demand_noise_sweeps_move_only_their_proxy():
    plain, noisy = (datasets.make_demand_proximal(5000, seed=2, outcome_proxy_noise=s) for s in (1.0, 3.0))
    assert np.array_equal(plain.treatment, noisy.treatment)
    assert noisy.outcome_proxy.std() > plain.outcome_proxy.std()
    assert noisy.truth([[10.0]])[0] != plain.truth([[10.0]])[0]
    with pytest.raises(ValueError, match=r"treatment_proxy_noise must be .* got -1"):
        datasets.make_demand_proximal(10, treatment_proxy_noise=-1)


def test_true_model_has_no_error():
    class Truth:
        def effect(self, treatment):
            return data.truth(treatment)

    data = datasets.make_demand_proximal(10, seed=0)
    assert datasets.demand_proximal_error(Truth()) == 0.0
    data = datasets.make_kpv(10, seed=0)
    assert datasets.kpv_error(Truth()) == 0.0
    data = datasets.make_sprites(3, seed=0)
    assert datasets.sprites_error(Truth()) == 0.0


def test_kpv_curve_agrees_with_simulation():
    rng = np.random.default_rng(0)
    u2 = rng.uniform(-1, 2, 400_000)
    u1 = rng.uniform(0, 1, len(u2)) - ((u2 > 0) & (u2 < 1))
    data = datasets.make_kpv(10, seed=0)
    for a in (-1.0, 0.3, 2.0):
        draws = u2 * np.cos(2 * (a + 0.3 * u1 + 0.2))
        assert data.truth([a])[0] == pytest.approx(draws.mean(), abs=4 * draws.std() / np.sqrt(len(draws)))


def test_linear_design_has_its_closed_form():
    data = datasets.make_linear_proximal(200_000, seed=0)
    # Just identified: instruments (1, A, V) for (1, A, W).
    x, z = (
        np.hstack([np.ones_like(data.outcome), data.treatment, proxy])
        for proxy in (data.outcome_proxy, data.treatment_proxy)
    )
    np.testing.assert_allclose(np.linalg.solve(z.T @ x, z.T @ data.outcome[:, 0]), [-1.5, 2.0, 2.0], atol=0.05)
    np.testing.assert_allclose(data.truth([[0.0], [1.0]]), [0.5, 2.5])
    np.testing.assert_allclose(data.bridge(np.array([[1.0]]), np.array([[3.0]])), [2 + 1.5 + 1.5 * 2])
    # A regression on (A, W) is far off: the proxy is a noisy measurement.
    x = np.hstack([np.ones_like(data.outcome), data.treatment, data.outcome_proxy])
    assert abs(np.linalg.lstsq(x, data.outcome[:, 0], rcond=None)[0][1] - 2) > 0.2


def test_same_seed_same_rows_and_frame_has_the_roles():
    first, second = (datasets.make_demand_proximal(50, seed=3) for _ in range(2))
    assert np.array_equal(first.outcome, second.outcome)
    assert list(first.frame().columns) == ["sales", "price", "views", "fuel_1", "fuel_2"]
    assert set(first.roles()) == {"outcome", "treatment", "outcome_proxy", "treatment_proxy"}


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0])
def test_hearts_have_the_area_of_their_shape(scale):
    pictures = draw_many(scale)
    area = (14.6 * scale) ** 2 * (1 + np.pi / 4)
    np.testing.assert_allclose(pictures.sum(axis=(1, 2)), area, rtol=0.02)


def draw_many(scale):
    angles = np.linspace(0, 2 * np.pi, 12)
    return datasets.draw_hearts(scale, angles, np.linspace(0, 1, 12), np.linspace(1, 0, 12))


def test_hearts_agree_with_supersampling():
    """An independent picture: points inside the square or the discs, 16 x 16 of them per pixel."""
    scale, angle, x, y = 0.9, 0.7, 0.3, 0.8
    fine = (np.arange(64 * 16) + 0.5) / 16
    dx, dy = np.meshgrid(fine - (16 + 32 * x), (16 + 32 * y) - fine)
    side = 14.6 * scale
    corners = [angle + np.pi / 4 + k * np.pi / 2 for k in range(4)]
    inside = np.ones_like(dx, dtype=bool)
    for direction in corners:
        inside &= np.cos(direction) * dx + np.sin(direction) * dy <= side / 2
    for direction in corners[:2]:
        centre = side / 2 * np.array([np.cos(direction), np.sin(direction)])
        inside |= (dx - centre[0]) ** 2 + (dy - centre[1]) ** 2 <= (side / 2) ** 2
    expected = inside.reshape(64, 16, 64, 16).mean(axis=(1, 3))
    picture = datasets.draw_hearts(scale, angle, x, y)[0]
    assert np.abs(picture - expected).max() < 0.2
    assert np.abs(picture - expected).mean() < 0.002


def test_hearts_point_down_move_and_turn():
    upright, turned = datasets.draw_hearts(1.0, [0.0, np.pi], 0.5, 0.5)
    # Two lobes above, one tip below; half a turn is a reflection through the centre.
    assert upright[:32].sum() > upright[32:].sum()
    np.testing.assert_allclose(turned, upright[::-1, ::-1], atol=1e-4)
    np.testing.assert_allclose(upright, upright[:, ::-1], atol=1e-4)
    low = datasets.draw_hearts(1.0, 0.0, 0.5, 1.0)[0]
    assert (low.sum(axis=1) @ np.arange(64)) / low.sum() > 40
    # Every place and angle of the lattice stays in the frame.
    edge = datasets.draw_hearts(1.0, np.linspace(0, 6, 40), 0.0, 1.0)
    assert edge[:, :, 0].max() == edge[:, 63].max() == 0.0


def test_sprites_have_the_stated_structure():
    data = datasets.make_sprites(2000, seed=0)
    assert data.treatment.shape == data.outcome_proxy.shape == (2000, 4096)
    assert data.treatment_proxy.shape == (2000, 3)
    pictures, truth = datasets.sprites_grid()
    assert pictures.shape == (588, 4096)
    weight = np.abs(32 - np.arange(64)) / 32
    picture = pictures[17].reshape(64, 64)
    assert truth[17] == pytest.approx(((picture * weight).sum() ** 2 - 3000) / 500)
    # The proxy shows the height: its centre of mass moves over 32 pixels, with the factor of the outcome.
    clean = data.outcome_proxy.reshape(-1, 64, 64).sum(axis=2)
    height = (clean[:, 8:56] @ np.arange(8, 56)) / clean[:, 8:56].sum(axis=1)
    position = np.round((height - height.min()) / np.ptp(height) * 31)
    factor = (position - 15.5) ** 2 / 85.25
    residual = data.outcome[:, 0] - data.truth(data.treatment) * factor
    assert residual.std() < 0.3 * data.outcome.std()


def test_official_pictures_are_read_or_missed_clearly(tmp_path, monkeypatch):
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path))
    with pytest.raises(DataError, match="official pictures need dsprites_ndarray"):
        datasets.make_sprites(5, source="official")
    np.savez(tmp_path / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz", imgs=np.zeros((4, 64, 64), np.uint8))
    with pytest.raises(DataError, match=r"737280 pictures .* got shape \(4, 64, 64\)"):
        datasets.make_sprites(5, source="official")
    with pytest.raises(ValueError, match="source must be 'rendered' or 'official', got 'web'"):
        datasets.make_sprites(5, source="web")
