"""What a client that misbehaves sends: its answers, changed while the federation trains.

Client 0 misbehaves from the second round on. Copies and noisy data are settings of the simulation and change no answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedworth import Answer, Report

KINDS = {kind.name: kind for kind in Report("", (), ()).not_looked_for}
"""Every kind of finding: an empty report has looked for none of them."""
CHEAT = "0"
COPIED = "copy, equal batches"
Model = Mapping[str, torch.Tensor]
Answers = dict[str, Answer]
Act = Callable[[Any, Model, Answers], Model | Answer]
"""What a client sends instead, from what it remembers, the global model and the honest answers."""


@dataclass(frozen=True)
class Kind:
    """A kind of federation: which clients are planted, and which findings should name them."""

    name: str
    planted: tuple[int, ...]
    found_as: frozenset[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    act: Act | None = None

    @property
    def is_valued(self) -> bool:
        """Whether values can show it. Then the federation is valued, and findings about values count."""
        return not self.found_as or bool(self.found_as & {"low value", "value by length"})


@dataclass
class Memory:
    """What a client that cheats remembers, and how it cheats."""

    act: Act
    starts: list[Model] = field(default_factory=list)  # the global models so far
    own: list[Model] = field(default_factory=list)  # the honest updates so far
    others: list[Model] = field(default_factory=list)  # another client's update of each round
    last_sent: Model | None = None
    first_round: int = 1  # from which on it cheats

    def __call__(self, round_index: int, start: Model, answers: Answers) -> Answers:
        """The answers of a round, client 0's changed."""
        other = next(name for name in answers if name != CHEAT)
        changed = dict(answers)
        if CHEAT in answers:
            honest = answers[CHEAT]
            model = self.act(self, start, answers) if round_index >= self.first_round else honest.model
            changed[CHEAT] = model if isinstance(model, Answer) else Answer(dict(model), honest.n_samples)
            self.own.append(minus(honest.model, start))
            self.last_sent = changed[CHEAT].model
        self.starts.append(start)
        self.others.append(minus(answers[other].model, start))
        return changed


def minus(model: Model, start: Model) -> Model:
    """The update that leads from `start` to `model`, in float64."""
    return {name: tensor.double() - start[name].double() for name, tensor in model.items()}


def plus(start: Model, update: Model, factor: float = 1.0) -> Model:
    """The model after an update."""
    return {name: (tensor.double() + factor * update[name]).to(tensor.dtype) for name, tensor in start.items()}


def _sends_again(memory: Memory, _start: Model, answers: Answers) -> Model:
    """In every second of its rounds the model that it sent before."""
    return answers[CHEAT].model if len(memory.own) % 2 == 0 or memory.last_sent is None else memory.last_sent


def _follows(memory: Memory, start: Model, _: Answers) -> Model:
    """Three times the server's last step, with noise of a tenth of that."""
    step = minus(start, memory.starts[-1])
    generator = torch.Generator().manual_seed(len(memory.starts))
    noise = {name: torch.randn(tensor.shape, generator=generator, dtype=torch.float64) for name, tensor in step.items()}
    part = 0.1 * length(step) / length(noise)
    return plus(start, {name: tensor + part * noise[name] for name, tensor in step.items()}, 3.0)


def length(update: Model) -> float:
    """The Euclidean norm of an update."""
    return float(torch.stack([tensor.double().square().sum() for tensor in update.values()]).sum().sqrt())


def _copies(_: Memory, start: Model, answers: Answers) -> Model:
    """Another client's update of the same round, half as long again."""
    other = next(answer for name, answer in answers.items() if name != CHEAT)
    return plus(start, minus(other.model, start), 1.5)


ACTS: Mapping[str, tuple[str, Act]] = {
    "free rider: no update": ("no update", lambda _, start, __: {name: t.clone() for name, t in start.items()}),
    "free rider: repeats its first update": ("replay", lambda memory, start, _: plus(start, memory.own[0])),
    "free rider: another's last update": ("late copy", lambda memory, start, _: plus(start, memory.others[-1])),
    "free rider: the server's last step × 1.5": (
        "echo", lambda memory, start, _: plus(start, minus(start, memory.starts[-1]), 1.5)
    ),
    "free rider: the server's last step × 3, with 10 % noise": ("follower", _follows),
    "free rider: an earlier global model": ("stale model", lambda memory, _, __: memory.starts[-1]),
    "another's update × 1.5": ("scaled copy", _copies),
    "200 times the samples": (
        "many samples", lambda _, __, answers: Answer(answers[CHEAT].model, 200 * answers[CHEAT].n_samples)
    ),
    "update × 10": ("large update", lambda _, start, answers: plus(start, minus(answers[CHEAT].model, start), 10.0)),
    "update × 3": ("value by length", lambda _, start, answers: plus(start, minus(answers[CHEAT].model, start), 3.0)),
    "replay of the last model": ("replay", _sends_again),
}  # fmt: skip
"""By kind: the finding that should name client 0, and what it sends."""


def kinds(n: int) -> tuple[Kind, ...]:
    """All kinds of federations of n clients."""
    same, low = frozenset({"same model", "scaled copy", "look-alikes"}), frozenset({"low value"})
    copies, pair, noisy = {"copies": ((n - 1, 0),)}, (0, n - 1), (0, 1)
    some, every = ((share, share) + (0.0,) * (n - 2) for share in (0.3, 1.0))
    cheats = [Kind(name, (0,), frozenset({found}), act=act) for name, (found, act) in ACTS.items()]
    return (
        Kind("clean", (), frozenset()),
        Kind(COPIED, pair, same, copies),
        Kind("copy, other batches", pair, same, {**copies, "copies_shuffled": True}),
        *cheats[:8],
        Kind("30 % of labels flipped", noisy, low | {"many groups"}, {"flip_shares": some}),
        Kind("noisy features, 3 sd", noisy, low, {"noise_shares": every, "noise_strength": 3.0}),
        Kind("noisy features, 10 sd", noisy, low, {"noise_shares": every, "noise_strength": 10.0}),
        *cheats[8:],
    )
