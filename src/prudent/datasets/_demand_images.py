"""The demand design with pictures: the customer type is a handwritten digit (Hartford et al., 2017).

As ``make_demand`` (normalised convention), but the context is (T, pixels), where the image shows the digit S in
{1..7} and pixels lie in [0, 1]. Training images come from the training part of the collection, images of the test grid
and of fresh contexts from its test part.
"""

import functools
from typing import Any

import numpy as np

from prudent.datasets._demand import (
    ACTION_RANGE,
    draw_market,
    draw_times,
    market_grid,
    normalised_price,
    normalised_sales,
)
from prudent.datasets._design import Design, generator
from prudent.datasets._digits import DigitImages, digit_images

# One image per point of the test grid, the same for every model.
GRID_SEED = 42


def make_demand_images(
    n: int, *, rho: float = 0.9, iv_strength: float = 1.0, seed: int = 0, images: str = "auto"
) -> Design:
    """Draw ``n`` rows of the demand design with images.

    Parameters
    ----------
    rho, iv_strength : float
        As in :func:`make_demand`.
    images : {"auto", "mnist", "digits"}
        MNIST (28 x 28) from the folder ``PRUDENT_DATA/mnist``, or the digits (8 x 8) that come with scikit-learn.
        "auto" takes MNIST where it is found; the names of the columns say which it was.
    """
    rng = generator(seed, n=n)
    collection = digit_images(images)
    t, s, z, price, noise = draw_market(n, rng, rho, iv_strength)
    action = normalised_price(price)
    pixels = collection.draw("train", s, rng)
    return Design(
        outcome=(normalised_sales(action, t, s) + noise)[:, None],
        action=action[:, None],
        instruments=z[:, None],
        context=np.column_stack([t, pixels]),
        names={
            "outcome": ["sales"],
            "action": ["price"],
            "instruments": ["fuel"],
            "context": ["time", *(f"{collection.source}_{j:03d}" for j in range(pixels.shape[1]))],
        },
        function=functools.partial(_sales_in_context, collection=collection),
        action_range=ACTION_RANGE,
        draw_contexts=functools.partial(_draw_contexts, collection=collection),
        images=collection.shape,
    )


def demand_images_grid(images: str = "auto") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The test grid: (price, context, true sales) at the 2800 points of ``demand_grid``, each with a test image."""
    collection = digit_images(images)
    price, t, s = market_grid()
    pixels = collection.draw("test", s, np.random.default_rng(GRID_SEED))
    action = normalised_price(price)
    return action[:, None], np.column_stack([t, pixels]), normalised_sales(action, t, s)


def demand_images_error(model: Any, *, images: str = "auto") -> float:
    """Mean squared error of ``model.effect`` on the test grid, against the noise-free truth."""
    action, context, truth = demand_images_grid(images)
    return float(np.mean((np.asarray(model.effect(action, context)).reshape(-1) - truth) ** 2))


def _sales_in_context(action: np.ndarray, context: np.ndarray | None, *, collection: DigitImages) -> np.ndarray:
    assert context is not None
    return normalised_sales(action[:, 0], context[:, 0], collection.read(context[:, 1:]))


def _draw_contexts(n: int, rng: np.random.Generator, shifted: bool, *, collection: DigitImages) -> np.ndarray:
    t = draw_times(n, rng, shifted)
    return np.column_stack([t, collection.draw("test", rng.integers(1, 8, n), rng)])
