"""Random numbers that depend on a seed alone, not on who draws first."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel


@kernel
def next_state(state):
    """The next state, whose high bits are random: a state through the output function of splitmix64 (Steele, Lea,
    Flood, OOPSLA 2014), for the few numbers that an example draws; its period is not known."""
    x = np.uint64(state) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def below(state, count):
    """A number from 0 to `count` - 1, which is below 2**32, of a state's high bits."""
    return np.int64(((state >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))
