"""Which models and updates of a federation are copies of one another, in whatever rounds they were sent.

In: the traces of all rounds. Out: groups of two or more that are equal in bytes, or equal but for a factor.

For the second, each update's sketch is scaled to length one. A copy w' = w^t + c u, stored in numbers of relative
precision ε, errs by up to ε ‖w'‖, which is a share ρ = ε ‖w'‖ / ‖u'‖ of its update. Two updates are taken for copies if
their scaled sketches differ by no more than δ = 2 (ρ + ρ'). Two unrelated directions in d dimensions are so near with
a chance below δ^{d−1}: that, for all pairs that are compared, is what `sure` leaves. Updates with ρ above 10⁻⁴ are not
compared: there an honest client's next step can be as near. Nor are those that move in a few directions only (an
effective dimension under 4), where being parallel means nothing.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedworth.arrays import Floats
from fedworth.findings.traces import RoundTrace

SERVER = -1
MOST_ROUNDING = 1e-4
FEWEST_DIRECTIONS = 4.0

Cell = tuple[int, int, int]


@dataclass(frozen=True)
class Sent:
    """Something that a client, or the server, sent in a round: a model, or an update of this length."""

    client: int
    round_index: int
    start: str  # the sha256 of the global model that the round began with
    length: float = 1.0
    chance: float = 0.0  # that an unrelated update is as near

    @property
    def is_servers(self) -> bool:
        return self.client == SERVER


@dataclass(frozen=True)
class _Direction:
    """An update scaled to length one, and by how much rounding may have changed it."""

    sent: Sent
    unit: Floats  # (64,)
    rounding: float

    @property
    def cell(self) -> Cell:
        """Where the sketch lies by the size of its first three numbers: copies lie in the same cell or beside it."""
        x, y, z = (abs(self.unit[:3]) / (4 * MOST_ROUNDING)).astype(int).tolist()
        return x, y, z

    def is_along(self, other: "_Direction") -> bool:
        """Whether the two are copies; a factor may be negative."""
        apart = min(np.linalg.norm(self.unit - other.unit), np.linalg.norm(self.unit + other.unit))
        return float(apart) <= 2 * (self.rounding + other.rounding)


def same_bytes(traces: list[RoundTrace]) -> list[list[Sent]]:
    """Models that are equal to the bit; not those equal to the global model of their own round, which is no copy of
    what another client has sent."""
    groups: dict[str, list[Sent]] = defaultdict(list)
    for round_index, trace in enumerate(traces):
        for client, sha256 in zip((SERVER, *trace.clients), trace.sha256s, strict=True):
            if client == SERVER or sha256 != trace.sha256s[0]:
                groups[sha256].append(Sent(client, round_index, trace.sha256s[0]))
    return [group for group in groups.values() if len(group) > 1]


def same_directions(traces: list[RoundTrace]) -> list[list[Sent]]:
    """Updates that are equal but for a factor, the server's steps among them."""
    groups: list[list[_Direction]] = []
    cells: dict[Cell, list[list[_Direction]]] = defaultdict(list)
    for direction in _directions(traces):
        near = (group for cell in _around(direction) for group in cells.get(cell, ()))
        own = next((group for group in near if group[0].is_along(direction)), None)
        if own is None:
            own = []
            groups.append(own)
            cells[direction.cell].append(own)
        own.append(direction)
    return [[direction.sent for direction in group] for group in groups if len(group) > 1]


def _around(direction: _Direction) -> Iterator[Cell]:
    """The cells in which a copy's sketch may lie: its own, and those beside it."""
    x, y, z = direction.cell
    yield from itertools.product((x, x - 1, x + 1), (y, y - 1, y + 1), (z, z - 1, z + 1))


def _directions(traces: list[RoundTrace]) -> Iterator[_Direction]:
    """Every update that can be compared, in the order in which they were sent."""
    before: RoundTrace | None = None
    for round_index, trace in enumerate(traces):
        rows = [(SERVER, trace.sketches[0] - before.sketches[0], trace.model_norms[0])] if before is not None else []
        rows += list(zip(trace.clients, trace.sketches[1:], trace.model_norms[1:].tolist(), strict=True))
        for client, sketch, model_norm in rows:
            length = float(np.linalg.norm(sketch))
            rounding = trace.rounding * model_norm / length if length > 0 else np.inf
            n_directions = _n_directions(sketch) if rounding <= MOST_ROUNDING else 0.0
            if n_directions >= FEWEST_DIRECTIONS:
                chance = (4 * rounding) ** (n_directions - 1)
                yield _Direction(Sent(client, round_index, trace.sha256s[0], length, chance), sketch / length, rounding)
        before = trace


def _n_directions(sketch: Floats) -> float:
    """(Σ s²)² / Σ s⁴: how many of the 64 numbers carry the sketch."""
    scaled = sketch / np.abs(sketch).max()
    return float((scaled**2).sum() ** 2 / (scaled**4).sum())
