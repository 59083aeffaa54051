"""Hidden noise of the confounded environments: means over a moving window of independent draws."""

from collections.abc import Callable

import numpy as np

from prudent._checks import check_count

# ``draw(rng, n)`` returns n independent values.
Draw = Callable[[np.random.Generator, int], np.ndarray]


class NoiseQueue:
    """Mean of the last ``length`` draws.

    The queue starts full, so that the process is stationary from the first step; values ``length`` steps apart are
    independent, and the correlation at lag j < ``length`` is 1 - j / ``length``.
    """

    def __init__(self, length: int, draw: Draw):
        check_count("length of a noise queue", length, 1)
        self.length = int(length)
        self.value = float("nan")  # The present mean, once the queue is filled.
        self._draw = draw

    def reset(self, rng: np.random.Generator) -> float:
        """Fill the queue with draws of ``rng``, which also supplies the later ones."""
        self._rng = rng
        self._values = np.asarray(self._draw(rng, self.length), dtype=float)
        self._oldest = 0
        self.value = float(self._values.mean())
        return self.value

    def advance(self) -> float:
        """Drop the oldest draw, add a fresh one."""
        self._values[self._oldest] = self._draw(self._rng, 1)[0]
        self._oldest = (self._oldest + 1) % self.length
        self.value = float(self._values.mean())
        return self.value
