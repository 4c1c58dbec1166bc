"""Conversion between float32 and bfloat16. A bfloat16 is the upper half of a float32, stored as uint16."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it has no stubs
from numba import types
from numba.extending import intrinsic

WORD, HALF = ir.IntType(32), ir.IntType(16)
BITS_GONE = ir.Constant(WORD, 16)


def _widened(_typing: Any, number: Any) -> Any:
    """Implement `widened(number)`: return a float32 or bfloat16 as float32."""

    def generate(_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.args[0] == types.float32:
            return arguments[0]
        return builder.bitcast(builder.shl(builder.zext(arguments[0], WORD), BITS_GONE), ir.FloatType())

    return types.float32(number), generate


def _narrowed(_typing: Any, _number: Any, like: Any, _noise: Any) -> Any:
    """Implement `narrowed(number, like, noise)`: return a float32 in the dtype of `like`, float32 or bfloat16.

    Rounding to bfloat16 is stochastic and unbiased, with the lower 16 bits of `noise`. With rounding to nearest, a
    second moment that changes by a thousandth per step would never change.
    """

    def generate(_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.args[1] == types.float32:
            return arguments[0]
        bits, chance = (
            builder.bitcast(arguments[0], WORD),
            builder.and_(arguments[2], ir.Constant(WORD, 0xFFFF)),
        )
        return builder.trunc(builder.lshr(builder.add(bits, chance), BITS_GONE), HALF)

    return like(types.float32, like, types.uint32), generate


def _stirred(_typing: Any, _row: Any, _place: Any, _step: Any) -> Any:
    """Implement `stirred(row, place, step)`: return 32 pseudorandom bits that depend only on these three integers.

    The mixing function is from Chris Wellons, "Prospecting for Hash Functions" (2018). With plain Numba, products would
    have 64 bits, and half the number would be computed at once.
    """

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        row, place, step = arguments
        state = step
        for number, factor in ((row, 0x85EBCA6B), (place, 0x9E3779B1)):
            spread = builder.mul(builder.trunc(number, WORD), ir.Constant(WORD, factor))
            state = builder.add(state, spread)
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            state = builder.xor(state, builder.lshr(state, ir.Constant(WORD, shift)))
            state = builder.mul(state, ir.Constant(WORD, factor))
        return builder.xor(state, builder.lshr(state, ir.Constant(WORD, 15)))

    return types.uint32(types.intp, types.intp, types.uint32), generate


widened: Any = intrinsic(_widened)
narrowed: Any = intrinsic(_narrowed)
stirred: Any = intrinsic(_stirred)
