"""Replays a ledger's rounds under a server rule, and checks that the recorded server followed the rule.

For every round the rule's model of the participants, A, is compared with w^{t+1}, the global model of the next round or
the ledger's final model. The gap is ‖A − w^{t+1}‖ / ‖w^{t+1} − w^t‖ over all floating point tensors. Integer tensors
are left out: they are counters, which servers round, cast or reset. A gap within FLOAT_STEPS units in the last place of
w^{t+1}, plus a ten-thousandth of the update, is float error. Where a private server adds noise, the difference must be
as large as the noise is said to be. Adapters that a server finds by an SVD are compared by their products. If w^{t+1}
is not recorded, the round cannot be checked, and a note says why.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.errors import RuleError
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.task.rules import NOISE, Arrays, ProductMean, Rule, State, arrays_of, model_of, noise_of, rule_name

FLOAT_STEPS = 16
OF_UPDATE = 1e-4
MASKED = 50.0
"""Updates that are this many times longer than the server's step, and longer than the model itself, are masked. Updates
also cancel in a federation that has converged, but then none is as long as the model."""


@dataclass(frozen=True)
class RoundCheck:
    """One round's recomputed aggregate against the recorded one; `gap` is None where there is nothing to compare."""

    number: int
    gap: float | None
    is_same: bool
    remark: str = ""
    is_masked: bool = False  # the answers hide the clients' models, even if their mean is right


@dataclass(frozen=True)
class Checkpoint:
    """Where a replay can continue: the next round, and what the server remembers at its start."""

    round_index: int = 0
    memory: Mapping[str, Arrays] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayedRound:
    """One replayed round: the server's state in it, its check, and where the replay continues."""

    state: State
    check: RoundCheck
    following: Checkpoint


@dataclass(frozen=True)
class LedgerCheck:
    """The check of all rounds of a ledger under one rule."""

    rule: Rule
    checks: tuple[RoundCheck, ...] = ()
    settled: Checkpoint = field(default_factory=Checkpoint)  # where the check of a longer ledger can start

    @property
    def largest_gap(self) -> float:
        """The largest gap of all rounds that could be checked; 0 if the server followed the rule."""
        return max((check.gap or 0.0 for check in self.checks if not check.is_same), default=0.0)

    @property
    def n_same(self) -> int:
        """How many rounds' next models are what the rule gives."""
        return sum(check.is_same and check.gap is not None for check in self.checks)

    def refuse_masked(self) -> None:
        """Refuse a ledger whose answers are masked: nothing can be measured on them."""
        masked = [check.number for check in self.checks if check.is_masked]
        if masked:
            raise RuleError(
                f"round {_listed(masked)}: the answers look masked (secure aggregation): each is more than "
                f"{MASKED:.0f} times as long as the step that the server made of all of them, and longer than the "
                "model itself; masked answers cannot be valued, so record groups of clients whose sums are revealed "
                "(docs/privacy.md)"
            )

    def refuse_others(self) -> None:
        """Refuse a ledger whose server did not follow the rule, or whose answers are masked."""
        self.refuse_masked()
        wrong = [check for check in self.checks if not check.is_same and check.gap is not None]
        if not wrong:
            return
        worst, n_checked = max(wrong, key=lambda check: check.gap or 0.0), sum(c.gap is not None for c in self.checks)
        remark = f" ({worst.remark})" if worst.remark else ""
        raise RuleError(
            f"round {worst.number}: the recorded next model is not the {rule_name(self.rule)} of the participants' "
            f"models; they differ by {worst.gap:.2g} of the round's update{remark}; {len(wrong)} of {n_checked} rounds "
            "that could be checked differ; name the server's rule (Task(rule=…), or strategy=… when recording), or "
            "value the federation as if its server averaged: --as-average"
        )

    def notes(self) -> tuple[str, ...]:
        """What a reader must know: by how much the server departed from the rule, and what could not be checked."""
        notes = []
        if self.largest_gap > 0:
            notes.append(
                f"the recorded server does not follow the rule that is valued here, the {rule_name(self.rule)}: its "
                f"models differ by up to {self.largest_gap:.2g} of a round's update; the values are those of a server "
                "that follows it (--as-average)"
            )
        return (*notes, *self.unchecked())

    def unchecked(self) -> tuple[str, ...]:
        """Which rounds could not be checked, by reason."""
        reasons: dict[str, list[int]] = {}
        for check in self.checks:
            if check.gap is None:
                reasons.setdefault(check.remark, []).append(check.number)
        noise = "; its noise is not known, and none is added" if noise_of(self.rule) else ""
        return tuple(
            f"the server's model after round {_listed(numbers)} could not be checked: {reason}{noise}"
            for reason, numbers in reasons.items()
        )


def check_ledger(ledger: Ledger, rule: Rule, known: LedgerCheck | None = None) -> LedgerCheck:
    """Check every round of a ledger.

    `known` is the check of the same ledger when it was shorter; the rounds that it settled are not read again.
    """
    if ledger.form is not None:
        return LedgerCheck(rule)  # embeddings of a vertical federation are used as they are
    settled = Checkpoint() if known is None else known.settled
    checks = [] if known is None else list(known.checks[: settled.round_index])
    for step in replayed(ledger, rule, settled):
        checks.append(step.check)
        if len(checks) < ledger.n_rounds or ledger.is_closed:
            settled = step.following
    return LedgerCheck(rule, tuple(checks), settled)


def replayed(ledger: Ledger, rule: Rule, start: Checkpoint | None = None) -> Iterator[ReplayedRound]:
    """Replay the rounds from `start` on; every file is read once."""
    place, upcoming = start or Checkpoint(), None
    while place.round_index < ledger.n_rounds:
        round_ = upcoming or ledger.open_round(place.round_index)
        is_last = place.round_index + 1 == ledger.n_rounds
        upcoming = None if is_last else ledger.open_round(place.round_index + 1)
        step = _replay_round(ledger, rule, place, round_, upcoming)
        yield step
        place = step.following


def server_weights(ledger: Ledger, round_: Round) -> list[float]:
    """The weights that the server gave its participants."""
    counts = dict(zip(round_.entry.answered, round_.entry.sample_counts, strict=True))
    return [1.0 if ledger.aggregation == "uniform" else float(counts[k]) for k in round_.entry.participants]


def _replay_round(
    ledger: Ledger, rule: Rule, place: Checkpoint, round_: Round, upcoming: Round | None
) -> ReplayedRound:
    following, reason = _next_model(ledger, round_, upcoming)
    state = State(round_.entry.number, place.memory)
    members = list(round_.entry.participants)
    before = arrays_of(round_.global_model)
    predicted, after = before, state
    if members:
        models = [arrays_of(round_.client_models[k]) for k in members]
        predicted, after = rule.aggregate(before, models, server_weights(ledger, round_), state)
    if following is None:
        check = RoundCheck(round_.entry.number, None, True, reason)
    else:
        check = _compare(*_comparable(rule, round_, predicted, following), noise_of(rule) if members else 0.0)
        if noise_of(rule):
            noise = {name: _float64(following[name]) - a for name, a in predicted.items() if name in following}
            state = replace(state, memory={**state.memory, NOISE: noise})
    return ReplayedRound(state, check, Checkpoint(place.round_index + 1, after.memory))


def _next_model(ledger: Ledger, round_: Round, upcoming: Round | None) -> tuple[Model | None, str]:
    """The global model that followed a round, or why it is not known."""
    number = round_.entry.number
    if upcoming is not None:
        if upcoming.entry.number != number + 1:
            return None, "the round after it is not recorded"
        return upcoming.global_model, ""
    if any(gone.number > number for gone in ledger.missing):
        return None, "the round after it is not recorded"
    if not ledger.is_closed:
        return None, "the ledger is not closed, so the model after its last round is not known"
    return ledger.final_model(), ""


def _comparable(rule: Rule, round_: Round, predicted: Arrays, following: Model) -> tuple[Round, Arrays, Model]:
    """The round, the rule's model and the recorded one in numbers that can be compared: products for factors."""
    models = [following, round_.global_model, *round_.client_models.values()]
    has_shapes = all(
        {n: t.shape for n, t in m.items()} == {n: np.shape(a) for n, a in predicted.items()} for m in models
    )
    if not (isinstance(rule, ProductMean) and has_shapes):
        return round_, predicted, following
    products, *found = rule.products([predicted, *map(arrays_of, models)])
    tensors = [model_of(arrays, {n: model[n] for n in arrays}) for arrays, model in zip(found, models, strict=True)]
    clients = dict(zip(round_.client_models, tensors[2:], strict=True))
    return Round(round_.entry, tensors[1], clients, {}), products, tensors[0]


def _compare(round_: Round, predicted: Arrays, following: Model, noise: float) -> RoundCheck:
    number = round_.entry.number
    models = (round_.global_model, *round_.client_models.values())
    floats = [name for name in round_.global_model if all(model[name].is_floating_point() for model in models)]
    pairs = [(predicted[name], following[name], round_.global_model[name]) for name in floats if name in following]
    if len(pairs) < len(floats) or any(np.shape(p) != tuple(f.shape) for p, f, _ in pairs):
        return RoundCheck(number, float("inf"), False, "the next model has other tensors")
    distance = _norm(p - _float64(f) for p, f, _ in pairs)
    if noise > 0:
        # The root mean square of n draws of noise is σ(1 ± 1/√(2n)); six such deviations are allowed.
        n_numbers = sum(np.size(p) for p, _, _ in pairs)
        gap = float(abs(distance / (noise * np.sqrt(n_numbers)) - 1))
        return RoundCheck(number, gap, bool(gap <= 6 / np.sqrt(2 * n_numbers) + 1e-3))
    update = _norm(_float64(f) - _float64(w) for _, f, w in pairs)
    tolerance = FLOAT_STEPS * _norm(_float_step(f, round_, name) for name, (_, f, _) in zip(floats, pairs, strict=True))
    is_same = distance <= tolerance + OF_UPDATE * update
    gap = distance / update if update > 0 else (0.0 if is_same else float("inf"))
    is_masked = _is_masked(round_, update)
    remark = ""
    if not is_same and round_.entry.quarantined:
        remark = "answers that are quarantined here may have been averaged by the server"
    elif not is_same and is_masked:
        remark = "the answers look masked (secure aggregation)"
    return RoundCheck(number, gap, is_same, remark, is_masked)


def _is_masked(round_: Round, update: float) -> bool:
    """Whether every answer is far longer than the server's step, and longer than the model itself."""
    models = list(round_.client_models.values())
    least = max(MASKED * update, _norm(_float64(tensor) for tensor in round_.global_model.values()))
    if len(models) < 2 or least == 0:
        return False
    return all(
        _norm(_float64(tensor) - _float64(round_.global_model[name]) for name, tensor in model.items()) > least
        for model in models
    )


def _float_step(following: torch.Tensor, round_: Round, name: str) -> NDArray[Any]:
    """The distance of neighbouring floats around each number, in the coarsest precision that it went through."""
    models = [following, round_.global_model[name], *(model[name] for model in round_.client_models.values())]
    return max(torch.finfo(t.dtype).eps for t in models if t.is_floating_point()) * _float64(following)


def _float64(tensor: torch.Tensor) -> NDArray[Any]:
    return np.asarray(tensor.to(torch.float64).numpy())


def _norm(arrays: Iterable[NDArray[Any]]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays)))


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:5])
    return f"{shown}, …" if len(numbers) > 5 else shown
