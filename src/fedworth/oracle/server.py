"""Coalitions aggregated by the ledger's own server rule: w_S = A(w^t, models of S, weights, state_t).

The input is a ledger and an oracle that measures weighted means; the result is an oracle for the server's rule, with
notes for the report. First the rule is checked against the recorded next models. A ledger whose server did something
else is an error, unless the user asks for averages (`as_average`).

    weighted mean    the oracle as it is
    linear rules     the oracle as it is, on the members' contributions instead of their models: momentum, clipping and
                     noise move every member in the same way, so the coalition's model is still a weighted mean
    sum              the oracle as it is, with coefficients of 1
    embeddings       of a vertical federation: the members' new ones beside the others' old ones, by an own oracle
    all others       the rule makes each coalition's model, and the plain loop evaluates it
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch

from fedworth.arrays import Indices, Utilities
from fedworth.errors import ModelError, UsageError
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.ledger.manifest import ClosedLine, RoundEntry
from fedworth.names import Weighting
from fedworth.oracle.oracle import (
    LoopOracle,
    ModelOf,
    Oracle,
    OutputOracle,
    also_of,
    fitted_model,
    refuse_other_tensors,
)
from fedworth.oracle.weighting import Mixtures
from fedworth.task.adapters import N_TRIED, refuse_unused
from fedworth.task.replay import LedgerCheck, ReplayedRound, check_ledger, replayed
from fedworth.task.rules import (
    LinearRule,
    Rule,
    State,
    Sum,
    WeightedMean,
    arrays_of,
    model_of,
    noise_of,
    rule_name,
    rule_of,
)
from fedworth.task.task import Task
from fedworth.task.vertical import refuse_other_form
from fedworth.threads import fitting_threads


@dataclass(frozen=True)
class Server:
    """The oracle for a ledger's server, its rule, and notes for every report."""

    oracle: Oracle
    notes: tuple[str, ...] = ()
    rule: Rule | None = None  # None: the weighted mean

    def identity(self, ledger: Ledger, round_index: int) -> str | None:
        """A hash of the rule and of the lines that its state depends on; None for the weighted mean."""
        if ledger.form is not None:
            return _embedding_identity(ledger, round_index)
        if self.rule is None:
            return None
        lines: list[Any] = [*ledger.entries[: round_index + 1]]  # rules use round numbers and counts of samples
        if noise_of(self.rule):  # noise is read from the next model
            lines += [*ledger.entries[round_index + 1 : round_index + 2], ledger.closing, *ledger.missing]
        document = [self.rule.document(), ledger.aggregation, msgspec.to_builtins(lines)]
        return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def server_of(ledger: Ledger, oracle: Oracle, weighting: Weighting, *, as_average: bool = False) -> Server:
    """The oracle that aggregates coalitions as this ledger's server did; an error if its rule is not known."""
    if ledger.form is not None:
        if as_average:
            raise UsageError(f"{ledger.folder}: a vertical federation has no models to average; leave out --as-average")
        refuse_other_form(oracle.task, ledger.form, ledger.clients, str(ledger.folder))
        return Server(EmbeddingOracle(oracle.task, oracle.measure, also_of(oracle)))
    unused, task = _unused_notes(ledger, oracle.task), oracle.task
    rule = WeightedMean() if as_average else task.rule or rule_of(ledger)
    checked = _checked(ledger, rule)
    checked.refuse_masked()
    if as_average:
        return Server(oracle, checked.notes() + unused)
    checked.refuse_others()
    if isinstance(rule, WeightedMean):
        return Server(oracle, checked.unchecked() + unused)
    if weighting == "fixed":
        raise UsageError(
            f"weighting 'fixed' is for servers that average, and this one's rule is {rule_name(rule)}; choose another"
        )
    return Server(RuleOracle(oracle, task, ledger, rule), checked.unchecked() + unused, rule)


def _embedding_identity(ledger: Ledger, round_index: int) -> str:
    """A hash of the lines that a round's embeddings depend on: those before it, and the first of every sample."""
    n_lines = max(round_index + 1, int(getattr(ledger, "n_deciding", ledger.n_rounds)))
    document = [ledger.form, ledger.left_out, getattr(ledger, "unsent", None), ledger.entries[:n_lines]]
    return hashlib.sha256(msgspec.json.encode(document)).hexdigest()


def _unused_notes(ledger: Ledger, task: Task) -> tuple[str, ...]:
    """Test that the exchanged tensors move the module's outputs; all tensors of a module need no test."""
    if task.exchanged is None or ledger.n_rounds == 0:
        return ()
    recorded, like = ledger.open_round(0).global_model, task.state
    model = fitted_model(recorded, task, like)
    refuse_other_tensors(model, task, like)
    step = max(1, len(task.labels) // N_TRIED)

    def outputs(model: Model) -> torch.Tensor:
        with torch.inference_mode():
            return task.outputs(model, slice(None, N_TRIED * step, step))

    with fitting_threads(task.module):
        return refuse_unused(outputs, model, recorded, task.exchanged)


@dataclass(frozen=True)
class EmbeddingOracle(LoopOracle):
    """Measures coalitions of embeddings, one after the other.

        U_t(S) = mean over samples of  ℓ(head_t(h^{t−1} of all)) − ℓ(head_t(h^t of S, h^{t−1} of the others))

    head_t is the server's head as the embeddings of round t found it, before the server learned from them. An absent
    client's embeddings are stale, so a client that changes nothing adds exactly nothing.
    """

    def _mixer(self, round_: Round, mixtures: Mixtures, _is_large: bool) -> ModelOf:
        def model_of(row: int) -> Model:
            mixed = dict(round_.global_model)
            for k in np.flatnonzero(mixtures.memberships[row]).tolist():
                if k not in round_.client_models:
                    raise ModelError(f"round {round_.entry.number}: client {k} has no embeddings in this round")
                mixed[f"embeddings.{k}"] = round_.client_models[k][f"embeddings.{k}"]
            return mixed

        return model_of


@dataclass
class RuleOracle:
    """Measures coalitions under a server's rule; the server's state in each round is replayed from the ledger."""

    inner: Oracle
    task: Task
    ledger: Ledger
    rule: Rule
    _steps: list[ReplayedRound] = field(default_factory=list)  # the last one replayed
    _held: list[tuple[Round, Round]] = field(default_factory=list)  # the last round, and its clients' contributions

    def __post_init__(self) -> None:
        self.measure, self.also, self.n_blocks = self.inner.measure, also_of(self.inner), self.task.n_blocks

    def __reduce__(self) -> Any:
        raise UsageError(
            f"the rule {rule_name(self.rule)} can only be measured on this machine; leave out --engine ray"
        )

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """(n_mixtures, n_columns): the utility of each coalition on each block of samples, then by other measures."""
        oracle, models, wanted = self._asked(round_, mixtures)
        return oracle.utilities(models, wanted)

    def outputs(self, round_: Round, mixtures: Mixtures, which: Sequence[Indices]) -> Iterator[torch.Tensor]:
        """The outputs of each coalition's model on its own samples, given by their numbers."""
        oracle, models, wanted = self._asked(round_, mixtures)
        if isinstance(oracle, OutputOracle):
            return oracle.outputs(models, wanted, which)
        return self._loop(round_, mixtures).outputs(round_, mixtures, which)

    def _asked(self, round_: Round, mixtures: Mixtures) -> tuple[Oracle, Round, Mixtures]:
        """The oracle that knows the coalitions' utilities, and the round and mixtures that it is asked for."""
        if isinstance(self.rule, Sum):
            ones = np.ones_like(mixtures.weights)  # updates are added and not averaged: w^t + Σ (w_k − w^t)
            return self.inner, round_, Mixtures(mixtures.memberships, ones, from_global=True)
        if isinstance(self.rule, LinearRule):
            return self.inner, self._contributions(round_, self.rule), mixtures
        return self._loop(round_, mixtures), round_, mixtures

    def _loop(self, round_: Round, mixtures: Mixtures) -> LoopOracle:
        """The plain loop, on the models that the server would have made of a round's coalitions."""

        def model_of(row: int) -> Model:
            return fitted_model(self.model(round_, mixtures, row), self.task)

        return _RuleLoop(self.task, self.measure, self.also, model_of=model_of)

    def model(self, round_: Round, mixtures: Mixtures, row: int) -> Model:
        """The model that the server would have made of one coalition; the global model if nobody is in it.

        The rule is applied to the members' models in the order in which the server added them. Those whose models are
        predicted or kept apart come last.
        """
        if mixtures.is_empty[row]:
            return round_.global_model
        state = self._state(round_.entry.round_index)
        order = dict.fromkeys([*round_.entry.participants, *round_.client_models, *round_.apart_models])
        members = [k for k in order if mixtures.memberships[row, k]]
        if len(members) < int(mixtures.memberships[row].sum()):
            raise ModelError(f"round {round_.entry.number}: a coalition has members without a model in this round")
        held = {**round_.client_models, **round_.apart_models}
        arrays = [arrays_of(held[k]) for k in members]
        model, _ = self.rule.aggregate(
            arrays_of(round_.global_model), arrays, [float(mixtures.weights[k]) for k in members], state
        )
        return model_of(model, round_.global_model)

    def _contributions(self, round_: Round, rule: LinearRule) -> Round:
        """The round with every client's contribution in place of its model; the last round is remembered."""
        if not self._held or self._held[0][0] is not round_:
            before, state = arrays_of(round_.global_model), self._state(round_.entry.round_index)
            models = {**round_.client_models, **round_.apart_models}
            contributions = {
                k: model_of(rule.contribution(before, arrays_of(model), state), round_.global_model)
                for k, model in models.items()
            }
            self._held = [(round_, Round(round_.entry, round_.global_model, contributions, {}))]
        return self._held[0][1]

    def _state(self, round_index: int) -> State:
        """The server's state in a round, replayed from the round that was asked for last, or from the first."""
        last = self._steps[-1].following.round_index - 1 if self._steps else -1
        if last != round_index:
            start = self._steps[-1].following if self._steps and last < round_index else None
            for step in replayed(self.ledger, self.rule, start):
                self._steps = [step]
                if step.following.round_index > round_index:
                    break
        return self._steps[-1].state


@dataclass(frozen=True)
class _RuleLoop(LoopOracle):
    model_of: ModelOf = field(kw_only=True)

    def _mixer(self, _round: Round, _mixtures: Mixtures, _is_large: bool) -> ModelOf:
        return self.model_of


_KNOWN: dict[str, tuple[tuple[RoundEntry, ...], ClosedLine | None, LedgerCheck]] = {}
"""The last check of a ledger, so that only new rounds are read when it is checked again."""


def _checked(ledger: Ledger, rule: Rule) -> LedgerCheck:
    key = json.dumps([str(ledger.folder.absolute()), rule.document()])
    earlier, closing, known = _KNOWN.get(key, ((), None, None))
    has_grown = ledger.entries[: len(earlier)] == earlier and closing in (None, ledger.closing)
    checked = check_ledger(ledger, rule, known if has_grown else None)
    _KNOWN.clear()
    _KNOWN[key] = ledger.entries, ledger.closing, checked
    return checked
