"""Products and sums of rows, in a fixed order and one thread: the same numbers give the same bytes."""

from fedworth.compile import compiled_within
from fedworth.completion.kernels.layout import Factors, Floats


@compiled_within
def product(one: Factors, i: int, other: Factors, j: int) -> float:
    """Row i of one times row j of the other."""
    total = 0.0
    for k in range(one.shape[1]):
        total += one[i, k] * other[j, k]
    return total


@compiled_within
def dot(one: Floats, i: int, other: Floats, j: int) -> float:
    """The same for long rows: in four sums, which a processor can add side by side."""
    a = b = c = d = 0.0
    size = one.shape[1]
    n = size // 4 * 4
    for k in range(0, n, 4):
        a += one[i, k] * other[j, k]
        b += one[i, k + 1] * other[j, k + 1]
        c += one[i, k + 2] * other[j, k + 2]
        d += one[i, k + 3] * other[j, k + 3]
    for k in range(n, size):
        a += one[i, k] * other[j, k]
    return (a + b) + (c + d)


@compiled_within
def add(target: Floats, i: int, times: float, source: Floats, j: int) -> None:
    for k in range(target.shape[1]):
        target[i, k] += times * source[j, k]


@compiled_within
def scale_add(room: Floats, i: int, times: float, j: int) -> None:
    """Row i becomes row j plus so many times itself."""
    for k in range(room.shape[1]):
        room[i, k] = room[j, k] + times * room[i, k]


@compiled_within
def total(numbers: Floats) -> float:
    """Their sum, with what each addition rounds off carried along (Kahan): objectives are compared to 13 digits."""
    total = lost = 0.0
    for number in numbers:
        wanted = number - lost
        reached = total + wanted
        lost = (reached - total) - wanted
        total = reached
    return total
