"""A small random generator for Numba kernels: xoshiro256++ seeded by splitmix64.

Each run owns its four words of state, so that runs are reproducible one by one and independent of the number of
threads.
"""

import numpy as np
from numba import njit


@njit(cache=True)
def seed_state(seed):
    """State of the generator for an integer seed."""
    state = np.empty(4, np.uint64)
    z = np.uint64(seed)
    for i in range(4):
        z += np.uint64(0x9E3779B97F4A7C15)
        x = z
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state[i] = x ^ (x >> np.uint64(31))
    return state


@njit(cache=True, nogil=True)
def next_word(state):
    """The next 64 random bits."""
    mixed = state[0] + state[3]
    result = ((mixed << np.uint64(23)) | (mixed >> np.uint64(41))) + state[0]
    carried = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= carried
    state[3] = (state[3] << np.uint64(45)) | (state[3] >> np.uint64(19))
    return result


@njit(cache=True, nogil=True)
def uniform(state):
    """A float in [0, 1) with 53 random bits."""
    return np.float64(next_word(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def below(state, n):
    """An integer in 0..n-1. The bias of the multiplication is below n / 2**32."""
    return np.int64(((next_word(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
