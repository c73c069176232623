"""The vector instructions the kernels are made of: samples lie side by side in the lanes of a vector.

Written into LLVM by hand, because numba neither vectorises `exp` without a vendor's library nor keeps a block of
sums in registers. LLVM cuts the vectors down to whatever the machine has.

`Lanes` appends instructions to one LLVM builder. Its exponential is

    2^t = 2^n · 2^f,  n = round(t),  f = t − n ∈ [−½, ½],

2^f by the polynomial of degree 6 that errs least there (4e-9 of the value, below float32's own 6e-8), and 2^n by
adding n to the exponent bits. Rounding adds 1.5·2^23, which leaves n in the lowest bits of the sum.

`LogSum` is Σ log s over many s ≥ 0 with one logarithm at the end: mantissas multiply, exponents add up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import config, types
from numba.core import cgutils


def _has_wide_vectors() -> bool:
    if config.CPU_FEATURES is not None:
        return "+avx512f" in config.CPU_FEATURES
    return bool(binding.get_host_cpu_features().get("avx512f", False))


LANES = 16 if _has_wide_vectors() else 8
"""Samples in one vector."""

VECTORS = 2 if _has_wide_vectors() else 1
"""Vectors side by side in a tile, so that one weight loaded serves several; 32 registers hold twice as many as 16."""

TILE = LANES * VECTORS
"""Samples that go through a product together."""

F32, F64, I32, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
FLOATS = ir.VectorType(F32, LANES)
DOUBLES = ir.VectorType(F64, LANES)
INTS = ir.VectorType(I32, LANES)

LOG2E = 1.4426950408889634
LOWEST = -125.0
"""2^LOWEST is the smallest power the exponential gives; 1 + 2^LOWEST is 1."""

_ROUNDING = 12582912.0  # 1.5 · 2^23
_POLYNOMIAL = np.polynomial.chebyshev.Chebyshev.interpolate(np.exp2, 6, [-0.5, 0.5]).convert(
    kind=np.polynomial.Polynomial
)


class Lanes:
    """Vector instructions, appended where a builder stands."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context = context
        self.builder = builder

    def data(self, array_type: Any, array: Any) -> Any:
        """Where an array's numbers begin."""
        return self.context.make_array(array_type)(self.context, self.builder, array).data

    def at(self, data: Any, offset: Any) -> Any:
        return self.builder.gep(data, [offset])

    def load(self, data: Any, offset: Any, kind: Any = FLOATS) -> Any:
        pointer = self.builder.bitcast(self.at(data, offset), kind.as_pointer())
        return self.builder.load(pointer, align=4)

    def store(self, value: Any, data: Any, offset: Any) -> None:
        pointer = self.builder.bitcast(self.at(data, offset), value.type.as_pointer())
        self.builder.store(value, pointer, align=4)

    def everywhere(self, scalar: Any, kind: Any = FLOATS) -> Any:
        """A scalar in every lane."""
        single = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
        return self.builder.shuffle_vector(
            single, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * LANES)
        )

    def constant(self, value: float, kind: Any = FLOATS) -> Any:
        return ir.Constant(kind, [value] * LANES)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c, rounded once where the machine can."""
        signature = ir.FunctionType(FLOATS, [FLOATS] * 3)
        fmuladd = cgutils.get_or_insert_function(
            self.builder.module, signature, f"llvm.fmuladd.v{LANES}f32"
        )
        return self.builder.call(fmuladd, [a, b, c])

    def maximum(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def exp2(self, power: Any) -> Any:
        """2^power for power ≤ 127; below LOWEST, 2^LOWEST."""
        b = self.builder
        power = self.maximum(power, self.constant(LOWEST))
        shifted = b.fadd(power, self.constant(_ROUNDING))
        rest = b.fsub(power, b.fsub(shifted, self.constant(_ROUNDING)))
        value = self.constant(float(np.float32(_POLYNOMIAL.coef[-1])))
        for coefficient in _POLYNOMIAL.coef[-2::-1]:
            value = self.multiply_add(value, rest, self.constant(float(np.float32(coefficient))))
        whole = b.shl(b.bitcast(shifted, INTS), self.constant(23, INTS))
        return b.bitcast(b.add(b.bitcast(value, INTS), whole), FLOATS)

    def variable(self, start: Any) -> Any:
        """A vector that later instructions may change."""
        return cgutils.alloca_once_value(self.builder, start)

    @contextmanager
    def times(self, count: Any) -> Iterator[Any]:
        """Repeat what is appended inside; yields the index."""
        with cgutils.for_range(self.builder, count) as loop:
            yield loop.index

    def total(self, vector: Any) -> Any:
        """The sum over all lanes, as float64, in a fixed order."""
        return self._folded(vector, self.builder.fadd)

    def product(self, vector: Any) -> Any:
        return self._folded(vector, self.builder.fmul)

    def _folded(self, vector: Any, combine: Any) -> Any:
        b = self.builder
        parts = [b.extract_element(vector, I32(lane)) for lane in range(LANES)]
        while len(parts) > 1:
            parts = [combine(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
        return parts[0]


class LogSum:
    """Σ log s over many s: s = m·2^e with m ∈ [1, 2), so it is log(Π m) + log 2 · Σ e.

    At most 32 vectors of s: Π m over them stays below 2^32 in each lane and 2^512 in all.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.mantissas = lanes.variable(lanes.constant(1.0))
        self.exponents = lanes.variable(lanes.constant(0, INTS))

    def add(self, s: Any) -> None:
        b, lanes = self.lanes.builder, self.lanes
        bits = b.bitcast(s, INTS)
        exponent = b.sub(b.lshr(bits, lanes.constant(23, INTS)), lanes.constant(127, INTS))
        mantissa = b.or_(
            b.and_(bits, lanes.constant(0x007FFFFF, INTS)), lanes.constant(0x3F800000, INTS)
        )
        b.store(b.fmul(b.load(self.mantissas), b.bitcast(mantissa, FLOATS)), self.mantissas)
        b.store(b.add(b.load(self.exponents), exponent), self.exponents)

    def mantissa_product(self) -> Any:
        b = self.lanes.builder
        return self.lanes.product(b.fpext(b.load(self.mantissas), DOUBLES))

    def exponent_sum(self) -> Any:
        b = self.lanes.builder
        return self.lanes.total(b.sitofp(b.load(self.exponents), DOUBLES))


MEASURES = types.UniTuple(types.float64, 4)
"""What a vector kernel hands back: Π mantissas and Σ exponents of the log-sum, Σ of the linear part, and how many
samples were predicted correctly."""


def measures(lanes: Lanes, logs: LogSum, linear: Any, n_correct: Any) -> Any:
    """The four numbers of MEASURES, as the value of an intrinsic."""
    parts = [logs.mantissa_product(), logs.exponent_sum(), linear, n_correct]
    return lanes.context.make_tuple(lanes.builder, MEASURES, parts)
