"""Copies and free riders: models and updates that repeat another client's, the server's, or the client's own.

    same model      two clients send the same model in one round
    scaled copy     the update of one client is c times that of another in the same round
    late copy       a client sends a model, or c times an update, that another has sent in an earlier round
    replay          … that it has sent itself in an earlier round
    stale model     a client sends a global model of an earlier round
    echo            a client's update is c times the server's last step w^t − w^{t−1}

"Same" means equal bytes. For "c times" each update's sketch is scaled to length one. A copy w' = w^t + c u, stored with
relative precision ε, has an error of up to ε ‖w'‖, which is a share ρ = ε ‖w'‖ / ‖u'‖ of its update. Two updates are
copies if their scaled sketches differ by at most δ = 2 (ρ + ρ'). Two unrelated directions in d dimensions are that
close with a probability below δ^{d−1}; the confidence counts it for all pairs that are compared. Updates with ρ above
10⁻⁴ are not compared, because there an honest client's next step can be as close. Updates that move in a few
directions only (effective dimension below 4) are not compared either, because they are parallel by chance.

The same answer to the same global model is no replay: training without randomness repeats itself.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedworth.arrays import Floats
from fedworth.findings.finding import Detected, Evidence, Kind, Level, confidence_of
from fedworth.findings.traces import RoundTrace
from fedworth.ledger.ledger import Ledger

SERVER = -1
MOST_ROUNDING = 1e-4
FEWEST_DIRECTIONS = 4.0

COPIES = "The same data counted twice take value from everyone else, and both are paid for one set of data."
ASK_COPIES = (
    "Ask each of them where its data come from. If one is a copy, make the report again without it (option --without)."
)
CLIENT_COPY = (
    "Check whether your data, and the model that you send, are yours alone. The coordinator will ask you about it."
)
NOT_TRAINED = "An answer that was not trained adds nothing, but is averaged like any other."
ASK_TRAINING = "Ask whether its training runs: a full disk, an empty data folder or a cached answer look like this."
CLIENT_TRAINING = "Check that your training runs to its end and that its result is what you send."

SAME_MODEL = Kind(
    "same model",
    Level.ACT,
    sentence="{clients} sent the same model",
    basis="byte-identical models",
    title="sent the same model",
    why=COPIES,
    action=ASK_COPIES,
    client_title="Your model was the same as another {noun}’s",
    client_action=CLIENT_COPY,
    needs="a round of two answers",
)
SCALED_COPY = Kind(
    "scaled copy",
    Level.ACT,
    sentence="{clients} sent the same update, one up to {ratio} times as long as the other",
    basis="sketches of the updates",
    title="sent the same update, scaled",
    why="One may be paid for the other’s work. " + COPIES,
    action=ASK_COPIES,
    client_title="Your update was another {noun}’s, scaled",
    client_action=CLIENT_COPY,
    needs="a round with two updates that are not mostly rounding",
)
LATE_COPY = Kind(
    "late copy",
    Level.ACT,
    sentence="{clients} sent the same answer in different rounds",
    basis="earlier answers of the other",
    title="sent the same answer in different rounds",
    why="A client that sends what another sent before adds nothing of its own.",
    action=ASK_COPIES,
    client_title="An answer of yours was the same as another {noun}’s",
    client_action=CLIENT_COPY,
    needs="two rounds",
    across_rounds=True,
)
REPLAY = Kind(
    "replay",
    Level.ACT,
    sentence="{clients} repeated an answer of an earlier round",
    basis="its earlier answers",
    title="sent an old answer again",
    why=NOT_TRAINED,
    action=ASK_TRAINING,
    client_title="You sent an old answer again",
    client_action=CLIENT_TRAINING,
    needs="two rounds",
)
STALE_MODEL = Kind(
    "stale model",
    Level.ACT,
    sentence="{clients} sent back a global model of an earlier round",
    basis="byte-identical models",
    title="sent back an old shared model",
    why=NOT_TRAINED,
    action=ASK_TRAINING,
    client_title="You sent back an old shared model",
    client_action=CLIENT_TRAINING,
    needs="two rounds",
)
ECHO = Kind(
    "echo",
    Level.ACT,
    sentence="{clients} returned the server's own last step as an update, up to {ratio} times as long",
    basis="sketches of the updates",
    title="sent the server’s own last step",
    why="It follows the others’ training without training itself, and is paid for theirs.",
    action=ASK_TRAINING,
    client_title="Your update was the server’s own last step",
    client_action=CLIENT_TRAINING,
    needs="two rounds with updates that are not mostly rounding",
)

REPEATS = (SAME_MODEL, SCALED_COPY, LATE_COPY, REPLAY, STALE_MODEL, ECHO)
AS_UPDATES = {SAME_MODEL.name: SCALED_COPY.name, STALE_MODEL.name: ECHO.name}
"""Equal models have equal updates; those are not reported a second time."""

Cell = tuple[int, int, int]


@dataclass(frozen=True)
class _Sent:
    """A model or an update that a client, or the server, sent in a round."""

    client: int
    round_index: int
    start: str  # sha256 of the global model that the round began with
    length: float = 1.0
    chance: float = 0.0  # probability that an unrelated update is as close

    @property
    def is_servers(self) -> bool:
        return self.client == SERVER


@dataclass(frozen=True)
class _Direction:
    """An update scaled to length one, and how much rounding may have changed it."""

    sent: _Sent
    unit: Floats  # (WIDTH,)
    rounding: float

    @property
    def cell(self) -> Cell:
        """A grid cell by the size of the first three numbers: copies lie in the same cell or next to it."""
        x, y, z = (abs(self.unit[:3]) / (4 * MOST_ROUNDING)).astype(int).tolist()
        return x, y, z

    def is_parallel_to(self, other: "_Direction") -> bool:
        """Whether the two are copies; the factor may be negative."""
        apart = min(np.linalg.norm(self.unit - other.unit), np.linalg.norm(self.unit + other.unit))
        return float(apart) <= 2 * (self.rounding + other.rounding)


def detect(ledger: Ledger, traces: list[RoundTrace], earlier: list[Evidence]) -> Detected:  # noqa: ARG001
    """Equal models, and scaled updates that are not already reported as equal models."""
    directions = list(_directions(traces))
    equal = [piece for group in _same_bytes(traces) for piece in _of_group(group)]
    reported = {
        (AS_UPDATES.get(piece.kind.name, piece.kind.name), client, piece.round_index)
        for piece in equal
        for client in piece.clients
    }
    n_sent = sum(len(trace.sha256s) for trace in traces)
    n_compared = n_sent * (n_sent - 1) / 2
    scaled = [
        piece
        for group in _same_directions(directions)
        for piece in _of_group(group, n_compared)
        if any((piece.kind.name, client, piece.round_index) not in reported for client in piece.clients)
    ]
    looked_for = [SAME_MODEL] if any(len(trace.clients) > 1 for trace in traces) else []
    if sum(bool(trace.clients) for trace in traces) > 1:
        looked_for += [LATE_COPY, REPLAY, STALE_MODEL]
    compared = [direction.sent.round_index for direction in directions if not direction.sent.is_servers]
    if len(compared) > len(set(compared)):
        looked_for.append(SCALED_COPY)
    if any(direction.sent.is_servers and direction.sent.round_index in compared for direction in directions):
        looked_for.append(ECHO)
    return equal + scaled, looked_for


def _of_group(group: list[_Sent], n_compared: float = 0.0) -> Iterator[Evidence]:
    """What a group of copies means: for each round, who sent them, and who had sent the same before.

    `n_compared` is the number of pairs of updates that were compared, 0 for a group of equal models.
    """
    earlier: list[_Sent] = []
    of_models = n_compared == 0
    confidence = 1.0 if of_models else confidence_of(n_compared * max(sent.chance for sent in group))
    for round_index in sorted({sent.round_index for sent in group}):
        earlier += [sent for sent in group if sent.is_servers and sent.round_index == round_index]
        now = [sent for sent in group if not sent.is_servers and sent.round_index == round_index]
        if len(now) > 1:
            lengths, clients = [sent.length for sent in now], tuple(sent.client for sent in now)
            kind = SAME_MODEL if of_models else SCALED_COPY
            ratio = {} if of_models else {"ratio": max(lengths) / min(lengths)}
            yield Evidence(kind, clients, round_index, ratio, confidence)
        before = [sent for sent in earlier if sent.is_servers or sent.start != now[0].start] if now else []
        yield from (
            replace(_repeated(sent, before, of_models=of_models), confidence=confidence) for sent in now if before
        )
        earlier += now


def _repeated(sent: _Sent, earlier: list[_Sent], *, of_models: bool) -> Evidence:
    """Who had sent the same before: the client itself, or else the server, or else another client."""
    servers = [other for other in earlier if other.is_servers]
    if any(other.client == sent.client for other in earlier):
        return Evidence(REPLAY, (sent.client,), sent.round_index)
    if servers and of_models:
        return Evidence(STALE_MODEL, (sent.client,), sent.round_index)
    if servers:
        return Evidence(ECHO, (sent.client,), sent.round_index, {"ratio": sent.length / servers[-1].length})
    return Evidence(LATE_COPY, (earlier[0].client, sent.client), sent.round_index)


def _same_bytes(traces: list[RoundTrace]) -> list[list[_Sent]]:
    """Groups of byte-identical models; without those equal to the global model of their own round."""
    groups: dict[str, list[_Sent]] = defaultdict(list)
    for round_index, trace in enumerate(traces):
        for client, sha256 in zip((SERVER, *trace.clients), trace.sha256s, strict=True):
            if client == SERVER or sha256 != trace.sha256s[0]:
                groups[sha256].append(_Sent(client, round_index, trace.sha256s[0]))
    return [group for group in groups.values() if len(group) > 1]


def _same_directions(directions: list[_Direction]) -> list[list[_Sent]]:
    """Groups of updates that are equal up to a factor, the server's steps among them."""
    groups: list[list[_Direction]] = []
    cells: dict[Cell, list[list[_Direction]]] = defaultdict(list)
    for direction in directions:
        x, y, z = direction.cell
        around = itertools.product((x, x - 1, x + 1), (y, y - 1, y + 1), (z, z - 1, z + 1))
        near = (group for cell in around for group in cells.get(cell, ()))
        own = next((group for group in near if group[0].is_parallel_to(direction)), None)
        if own is None:
            own = []
            groups.append(own)
            cells[direction.cell].append(own)
        own.append(direction)
    return [[direction.sent for direction in group] for group in groups if len(group) > 1]


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
                sent = _Sent(client, round_index, trace.sha256s[0], length, chance)
                yield _Direction(sent, sketch / length, rounding)
        before = trace


def _n_directions(sketch: Floats) -> float:
    """(Σ s²)² / Σ s⁴: how many of its numbers carry the sketch."""
    scaled = sketch / np.abs(sketch).max()
    return float((scaled**2).sum() ** 2 / (scaled**4).sum())
