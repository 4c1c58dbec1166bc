"""Random numbers that depend only on a seed, not on the order of the threads."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel


@kernel
def next_state(state):
    """Return the next state of a random number generator, uint64. Its high bits are random.

    Each state is the output function of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) of the previous state. The period
    is unknown, but an example draws only a few numbers.
    """
    x = np.uint64(state) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def below(state, count):
    """Return a random integer from 0 to `count` - 1 from the high bits of a state. `count` must be below 2**32."""
    return np.int64(((state >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))
