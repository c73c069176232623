"""What a client does that does not train as it should: its answers, changed as they are sent.

In: a kind of misconduct. Out: a function of the round, the global model and the honest answers that changes the answer
of client 0. Copies and noisy data are settings of the simulation, and change no answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedworth import findings as k
from fedworth.ledger.model import Model
from fedworth.ledger.writer import Answer

LIAR = "0"
COPIED = "copy, equal batches"
"""The copy whose answers are its source's to the bit."""

Answers = dict[str, Answer]


@dataclass(frozen=True)
class Kind:
    """A kind of federation: what is planted, which clients that makes odd, and what should be found of them."""

    name: str
    planted: tuple[int, ...]
    found_as: frozenset[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    act: Callable[["Memory", Model, Answers], Model] | None = None

    @property
    def is_valued(self) -> bool:
        """Whether values can show it: then the federation is valued too, and what they show is counted."""
        return not self.found_as or k.LOW_VALUE.name in self.found_as


@dataclass
class Memory:
    """What a client that cheats can remember, and the one that does."""

    act: Callable[["Memory", Model, Answers], Model]
    starts: list[Model] = field(default_factory=list)  # the global models so far
    own: list[Model] = field(default_factory=list)  # updates that it would have sent
    last_sent: Model | None = None
    others: list[Model] = field(default_factory=list)  # another client's update of each round

    def __call__(self, round_index: int, start: Model, answers: Answers) -> Answers:
        """The answers, client 0's changed once there is something to copy."""
        other = next(name for name in answers if name != LIAR)
        changed = dict(answers)
        if LIAR in answers:
            honest = answers[LIAR]
            model = self.act(self, start, answers) if round_index else honest.model
            changed[LIAR] = Answer(model, honest.n_samples)
            self.own.append(minus(honest.model, start))
            self.last_sent = model
        self.starts.append(start)
        self.others.append(minus(answers[other].model, start))
        return changed


def minus(model: Model, start: Model) -> Model:
    """The update from `start`, in float64."""
    return {name: tensor.double() - start[name].double() for name, tensor in model.items()}


def plus(start: Model, update: Model, factor: float = 1.0) -> Model:
    """The model at an update's end."""
    return {name: (tensor.double() + factor * update[name]).to(tensor.dtype) for name, tensor in start.items()}


def _idle(_memory: Memory, start: Model, _answers: Answers) -> Model:
    return {name: torch.clone(tensor) for name, tensor in start.items()}


def _repeats(memory: Memory, start: Model, _answers: Answers) -> Model:
    return plus(start, memory.own[0])


def _copies_another(memory: Memory, start: Model, _answers: Answers) -> Model:
    return plus(start, memory.others[-1])


def _follows_the_server(memory: Memory, start: Model, _answers: Answers) -> Model:
    return plus(start, minus(start, memory.starts[-1]), 1.5)


def _scales(_memory: Memory, start: Model, answers: Answers) -> Model:
    return plus(start, minus(answers[LIAR].model, start), 10.0)


def _sends_again(memory: Memory, _start: Model, answers: Answers) -> Model:
    """In every second of its rounds the very model that it sent before."""
    return answers[LIAR].model if len(memory.own) % 2 == 0 or memory.last_sent is None else memory.last_sent


def _shares(n: int, share: float) -> tuple[float, ...]:
    return (share, share) + (0.0,) * (n - 2)


def kinds(n: int) -> tuple[Kind, ...]:
    """All kinds of federations of n clients; in the first rounds of a free rider there is nothing to copy yet."""
    same = frozenset({k.SAME_MODEL.name, k.SCALED_COPY.name, k.SIMILAR.name})
    low, pair, noisy = frozenset({k.LOW_VALUE.name}), (0, n - 1), (0, 1)
    copies = {"copies": ((n - 1, 0),)}
    return (
        Kind("clean", (), frozenset()),
        Kind(COPIED, pair, same, copies),
        Kind("copy, other batches", pair, same, {**copies, "copies_shuffled": True}),
        Kind("free rider: no update", (0,), frozenset({k.NO_UPDATE.name}), act=_idle),
        Kind("free rider: repeats its first update", (0,), frozenset({k.REPLAY.name}), act=_repeats),
        Kind("free rider: another's last update", (0,), frozenset({k.LATE_COPY.name}), act=_copies_another),
        Kind("free rider: the server's last step × 1.5", (0,), frozenset({k.ECHO.name}), act=_follows_the_server),
        Kind("30 % of labels flipped", noisy, low, {"flip_shares": _shares(n, 0.3)}),
        Kind("noisy features, 3 sd", noisy, low, {"noise_shares": _shares(n, 1.0), "noise_strength": 3.0}),
        Kind("noisy features, 10 sd", noisy, low, {"noise_shares": _shares(n, 1.0), "noise_strength": 10.0}),
        Kind("update × 10", (0,), frozenset({k.LARGE_UPDATE.name}), act=_scales),
        Kind("replay of the last model", (0,), frozenset({k.REPLAY.name}), act=_sends_again),
    )
