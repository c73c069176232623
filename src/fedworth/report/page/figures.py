"""The page's figures as SVG and PNG, which a browser shows without a script.

Figures stretch with the page: positions are percentages, so text and strokes keep their size. A heat map is an indexed
PNG with one pixel for each cell, and transparency is the scale: zero shows the background, so one image fits light and
dark. It is not compressed, so its bytes do not depend on the version of zlib.
"""

import base64
import math
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices
from fedworth.valuation.valuation import ClientValue

PLUS, MINUS, ABSENT = (47, 122, 204), (204, 92, 38), (128, 128, 128)
BOX = (1000, 300)
MOST_POINTS = 250


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`, with round numbers on it."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> str:
        """The position of a value, in percent from the left."""
        return f"{self._percent(value):.2f}%"

    def up(self, value: float) -> str:
        """The position of a value, in percent from the top."""
        return f"{100 - self._percent(value):.2f}%"

    def width(self, first: float, second: float) -> str:
        """The distance of two values, in percent."""
        return f"{abs(self._percent(second) - self._percent(first)):.2f}%"

    def label(self, tick: float) -> str:
        """A tick as text, with its sign and as many decimals as the axis needs."""
        steps = np.diff(self.ticks)
        step = float(steps.min()) if len(steps) else abs(tick) or 1.0
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return "0" if tick == 0 else f"{'−' if tick < 0 else '+'}{abs(tick):.{decimals}f}"

    def _percent(self, value: float) -> float:
        return 100 * (value - self.low) / (self.high - self.low)


def axis_over(values: Floats, *, about: int = 5, room: float = 0.03) -> Axis:
    """An axis over zero and all of these values that are numbers."""
    known = values[np.isfinite(values)]
    low, high = min(0.0, float(known.min(initial=0))), max(0.0, float(known.max(initial=0)))
    if low == high:
        low, high = 0.0, 1.0
    ticks = nice_ticks(low, high, about)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    slack = room * (high - low)
    return Axis(low - slack, high + slack, ticks)


def axis_of(lines: Iterable[ClientValue], more: Iterable[float] = (), *, room: float = 0.03) -> Axis:
    """An axis over the values and intervals of clients, and more numbers."""
    ends = [end for line in lines for end in (line.value, line.low, line.high) if end is not None]
    return axis_over(np.array([*ends, *more], dtype=np.float64), room=room)


def nice_ticks(low: float, high: float, about: int = 5) -> tuple[float, ...]:
    """Round numbers from `low` to `high`."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((multiple * power for multiple in (1, 2, 5, 10)), key=lambda s: abs(s - raw))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(float(f"{k * step:.12g}") + 0.0 for k in range(first, last + 1))


def picks_of(n_points: int) -> Indices:
    """The points of a long line that are drawn."""
    return np.unique(np.linspace(0, n_points - 1, min(MOST_POINTS, n_points)).round().astype(np.int64))


def path(ys: Floats, axis: Axis) -> str:
    """An SVG path over the whole box, in whole relative steps (five bytes for each point)."""
    x = (np.arange(len(ys)) / max(len(ys) - 1, 1) * BOX[0]).round().astype(int)
    y = ((axis.high - ys) / (axis.high - axis.low) * BOX[1]).round().astype(int)
    steps = [f"{dx} {dy}" if dy >= 0 else f"{dx}{dy}" for dx, dy in zip(np.diff(x), np.diff(y), strict=True)]
    return f"M{x[0]} {y[0]}l" + (" ".join(steps) if steps else f"{BOX[0]} 0")


def heat_png(cells: Floats, top: float) -> str:
    """A PNG as a data URI: blue above zero, orange below, darker with the distance; grey without a number."""
    level = np.sign(cells) * np.sqrt(np.minimum(np.abs(cells) / top, 1.0))
    index = np.where(np.isnan(cells), 255, np.nan_to_num(level) * 127 + 127).round().astype(np.uint8)
    palette = b"".join(bytes(MINUS if k < 127 else PLUS if k < 255 else ABSENT) for k in range(256))
    alpha = bytes([*(min(255, abs(k - 127) * 2) for k in range(255)), 70])
    rows = b"".join(b"\0" + row.tobytes() for row in index)
    head = struct.pack(">IIBBBBB", cells.shape[1], cells.shape[0], 8, 3, 0, 0, 0)
    parts = [(b"IHDR", head), (b"PLTE", palette), (b"tRNS", alpha), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b"")]
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)
    return "data:image/png;base64," + base64.b64encode(whole).decode()


def dots(is_there: NDArray[np.bool_]) -> str:
    """A path with a dot in the middle of each of these cells."""
    return "".join(f"M{t + 0.5:g} {k + 0.5:g}h0" for k, t in zip(*np.nonzero(is_there), strict=True))


def packed(numbers: Floats) -> tuple[str, int]:
    """Numbers in base64, rounded to as many decimals as fit 16 bits, and the number of decimals; NaN is −32768."""
    largest = float(np.nanmax(np.abs(numbers), initial=0.0))
    decimals = math.floor(math.log10(32767 / largest)) if largest > 0 else 4
    whole = np.where(np.isnan(numbers), -32768, np.nan_to_num(numbers) * 10.0**decimals).round()
    return base64.b64encode(whole.astype("<i2").tobytes()).decode(), decimals


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
