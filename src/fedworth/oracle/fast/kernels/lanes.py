"""The vector instructions the kernels are made of: samples lie side by side in the lanes of a vector.

Written into LLVM by hand, because numba neither vectorises `exp` without a vendor's library nor keeps a block of
sums in registers. LLVM cuts the vectors down to what the machine has.

`Lanes` appends instructions to one LLVM builder. Its exponential is

    2^t = 2^n · 2^f,  n = round(t),  f = t − n ∈ [−½, ½],

2^f by a polynomial of degree 6 (it errs by 4e-9 of the value, float32 itself by 6e-8). Processors with wide vectors
round, and multiply by 2^n, in an instruction each. On others n is added to the exponent bits; rounding adds 1.5·2^23,
which leaves n in the lowest bits of the sum. Where what is given is above 2^LOWEST, both give the same bits.

`LogSum` is Σ log s with one logarithm at the end: with s = m·2^e and m ∈ [1, 2) it is log Π m + log 2 · Σ e.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedworth.compile import cgutils, host, ir, types


def _has_wide_vectors() -> bool:
    chosen = os.environ.get("NUMBA_CPU_FEATURES")  # numba compiles for these, if given
    return "+avx512f" in chosen if chosen else bool(host.get_host_cpu_features().get("avx512f", False))


WIDE = 16
"""Numbers in the widest vectors that there are."""

LANES = WIDE if _has_wide_vectors() else 8
"""Samples in one vector."""

VECTORS = 2 if _has_wide_vectors() else 1
"""Vectors in a tile. With 32 registers every weight loaded can meet two of them, with 16 only one."""

TILE = LANES * VECTORS
"""Samples that go through a product together."""

F32, F64, I16, I32, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
FLOATS = ir.VectorType(F32, LANES)
DOUBLES = ir.VectorType(F64, LANES)
INTS = ir.VectorType(I32, LANES)

LOG2E = 1.4426950408889634
LOWEST = -125.0
"""2^LOWEST is the least the exponential gives; 1 + 2^LOWEST is 1."""

LOSS_PARTS = types.UniTuple(types.float64, 3)
"""What a vector kernel hands back: Π m and Σ e of its LogSum, and Σ of the loss's linear part."""

_ROUNDING = 12582912.0  # 1.5 · 2^23
_POLYNOMIAL = np.polynomial.Chebyshev.interpolate(np.exp2, 6, [-0.5, 0.5]).convert(kind=np.polynomial.Polynomial)


class Lanes:
    """Vector instructions, appended where a builder stands."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context = context
        self.builder = builder

    def operands(self, signature: Any, args: Any) -> list[Any]:
        """The members of the one tuple an intrinsic is called with; arrays as the address of their first number."""
        members = cgutils.unpack_tuple(self.builder, args[0])
        return [
            self.context.make_array(kind)(self.context, self.builder, member).data
            if isinstance(kind, types.Array)
            else member
            for kind, member in zip(signature.args[0], members, strict=True)
        ]

    def at(self, data: Any, offset: Any) -> Any:
        return self.builder.gep(data, [offset])

    def load(self, data: Any, offset: Any, kind: Any = FLOATS) -> Any:
        pointer = self.builder.bitcast(self.at(data, offset), kind.as_pointer())
        return self.builder.load(pointer, align=4)

    def store(self, vector: Any, data: Any, offset: Any) -> None:
        pointer = self.builder.bitcast(self.at(data, offset), vector.type.as_pointer())
        self.builder.store(vector, pointer, align=4)

    def constant(self, number: float, kind: Any = FLOATS) -> Any:
        return ir.Constant(kind, [number] * LANES)

    def everywhere(self, scalar: Any, kind: Any = FLOATS) -> Any:
        """A scalar in every lane."""
        undefined = ir.Constant(kind, ir.Undefined)
        single = self.builder.insert_element(undefined, scalar, I32(0))
        return self.builder.shuffle_vector(single, undefined, self.constant(0, INTS))

    def variable(self, start: Any) -> Any:
        """A vector in memory that LLVM will keep in a register; `load` and `store` of the builder reach it."""
        return cgutils.alloca_once_value(self.builder, start)

    def add_to(self, variable: Any, vector: Any) -> None:
        add = self.builder.add if vector.type == INTS else self.builder.fadd
        self.builder.store(add(self.builder.load(variable), vector), variable)

    @contextmanager
    def times(self, count: Any) -> Iterator[Any]:
        """Repeat what is appended inside; yields the index."""
        with cgutils.for_range(self.builder, count) as loop:
            yield loop.index

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c, rounded once where the machine can."""
        return self._call(f"llvm.fmuladd.v{LANES}f32", a, b, c)

    def at_least(self, vector: Any, bound: Any) -> Any:
        """max(vector, bound) that hands on a NaN in `vector`, where x86's own maximum drops it."""
        return self.builder.select(self.builder.fcmp_ordered(">", bound, vector), bound, vector)

    def floats(self, integers: Any) -> Any:
        return self.builder.sitofp(integers, FLOATS)

    def rectified(self, integers: Any) -> Any:
        """relu(integers), as floats."""
        zero = self.constant(0, INTS)
        return self.floats(self.builder.select(self.builder.icmp_signed(">", integers, zero), integers, zero))

    def exp2(self, power: Any, *, is_finite: bool = False) -> Any:
        """2^power for power ≤ 127; below LOWEST, 2^LOWEST, or less where every power is known to be finite."""
        b = self.builder
        if not (is_finite and LANES == WIDE):
            power = self.at_least(power, self.constant(LOWEST))
        if LANES == WIDE:
            whole = self._call(f"llvm.rint.v{WIDE}f32", power)
            value, everywhere, rounded_as_usual = self._exp2_of_rest(b.fsub(power, whole)), I16(-1), I32(4)
            scale = f"llvm.x86.avx512.mask.scalef.ps.{32 * WIDE}"
            return self._call(scale, value, whole, value, everywhere, rounded_as_usual)
        shifted = b.fadd(power, self.constant(_ROUNDING))
        value = self._exp2_of_rest(b.fsub(power, b.fsub(shifted, self.constant(_ROUNDING))))
        whole = b.shl(b.bitcast(shifted, INTS), self.constant(23, INTS))
        return b.bitcast(b.add(b.bitcast(value, INTS), whole), FLOATS)

    def _exp2_of_rest(self, rest: Any) -> Any:
        """2^rest, for a rest of at most ½."""
        highest, *others = (self.constant(float(np.float32(c))) for c in _POLYNOMIAL.coef[::-1])
        value = highest
        for coefficient in others:
            value = self.multiply_add(value, rest, coefficient)
        return value

    def _call(self, name: str, *operands: Any) -> Any:
        """One of LLVM's own functions that gives a vector of floats."""
        signature = ir.FunctionType(FLOATS, [operand.type for operand in operands])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, signature, name), operands)

    def total(self, variable: Any) -> Any:
        """The sum over all lanes as float64, in a fixed order."""
        return self._folded(self.builder.load(variable), self.builder.fadd)

    def product(self, variable: Any) -> Any:
        return self._folded(self.builder.load(variable), self.builder.fmul)

    def _folded(self, vector: Any, combine: Any) -> Any:
        convert = self.builder.fpext if vector.type == FLOATS else self.builder.sitofp
        doubles = vector if vector.type == DOUBLES else convert(vector, DOUBLES)
        while doubles.type.count > 1:
            half = doubles.type.count // 2
            lower, upper = (
                self.builder.shuffle_vector(doubles, doubles, ir.Constant(ir.VectorType(I32, half), list(chosen)))
                for chosen in (range(half), range(half, 2 * half))
            )
            doubles = combine(lower, upper)
        return self.builder.extract_element(doubles, I32(0))


class LogSum:
    """Σ log s over at most 16 vectors of s > 0, so that Π m stays below 2^16 in a lane and 2^256 in all."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.mantissas = lanes.variable(lanes.constant(1.0))
        self.exponents = lanes.variable(lanes.constant(0, INTS))

    def add(self, s: Any) -> None:
        b, constant = self.lanes.builder, self.lanes.constant
        bits = b.bitcast(s, INTS)
        exponent = b.sub(b.lshr(bits, constant(23, INTS)), constant(127, INTS))
        mantissa = b.or_(b.and_(bits, constant(0x007FFFFF, INTS)), constant(0x3F800000, INTS))
        b.store(b.fmul(b.load(self.mantissas), b.bitcast(mantissa, FLOATS)), self.mantissas)
        self.lanes.add_to(self.exponents, exponent)

    def parts(self, linear: Any) -> Any:
        """LOSS_PARTS, as the value of an intrinsic."""
        lanes = self.lanes
        parts = [lanes.product(self.mantissas), lanes.total(self.exponents), lanes.total(linear)]
        return lanes.context.make_tuple(lanes.builder, LOSS_PARTS, parts)
