"""Coalitions as the ledger's own server would have aggregated them: w_S = A(w^t, models of S, weights, state_t).

In: a ledger, and an oracle that measures weighted means. Out: an oracle for the server's rule, and what a reader must
know of it. First the rule is held against the recorded next models (`rules.check`): a ledger whose server did something
else is refused, unless its server is to be taken for one that averages.

    the weighted mean    the oracle as it is
    linear rules         the oracle as it is, on the members' contributions instead of their models: momentum, clipping
                         and noise move every member alike, so the coalition's model is still their weighted mean
    all others           every coalition's model is made by the rule, then evaluated by the plain loop

Simulated ledgers were averaged by fedworth itself; `verify` checks them, and nothing here reads them twice.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedworth.arrays import Utilities
from fedworth.errors import ModelError, UsageError
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.names import Measure, Weighting
from fedworth.oracle.client_noise import noise_notes
from fedworth.oracle.oracle import LoopOracle, Oracle, TaskOracle
from fedworth.oracle.weighting import Mixtures
from fedworth.task.replay import LedgerCheck, ReplayedRound, check_ledger, replayed
from fedworth.task.rules import LinearRule, Rule, State, WeightedMean, arrays_of, model_of, noise_of, rule_name, rule_of
from fedworth.task.task import Task

TOGETHER = 8
"""Coalitions' models that are held in memory at once."""


@dataclass(frozen=True)
class Server:
    """The oracle for a ledger's server, its rule, and what is to be said of it in every report."""

    oracle: TaskOracle
    notes: tuple[str, ...] = ()
    rule: Rule | None = None  # None: the weighted mean

    def identity(self, ledger: Ledger, round_index: int) -> str | None:
        """What decides a round's utilities beside the round itself: the rule, and the rounds that its state is from."""
        if self.rule is None:
            return None
        files = [entry.sha256 for entry in ledger.entries]
        after = [*files[round_index + 1 :], ledger.closing.sha256 if ledger.closing else None][:1]
        noise = after if noise_of(self.rule) else None  # it is read from the next model
        document = [self.rule.document(), files[:round_index], noise]
        return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def server_of(ledger: Ledger, oracle: TaskOracle, weighting: Weighting, *, as_average: bool = False) -> Server:
    """The oracle that measures what this ledger's server would have made of a coalition, or a refusal."""
    server = _server_of(ledger, oracle, weighting, as_average=as_average)
    noisy = noise_notes(ledger, oracle, weighting) if isinstance(oracle, TaskOracle) else ()
    return replace(server, notes=server.notes + noisy)


def _server_of(ledger: Ledger, oracle: TaskOracle, weighting: Weighting, *, as_average: bool) -> Server:
    task = getattr(oracle, "task", None)
    if not isinstance(task, Task) or (task.rule is None and "test_sha256" in ledger.settings):
        return Server(oracle)
    rule = WeightedMean() if as_average else task.rule or rule_of(ledger)
    checked = _checked(ledger, rule)
    checked.refuse_masked()
    if as_average:
        return Server(oracle, checked.notes())
    checked.refuse_others()
    if isinstance(rule, WeightedMean):
        return Server(oracle, checked.unchecked())
    if weighting == "fixed":
        raise UsageError(f"weighting 'fixed' is for servers that average; this one's rule is {rule_name(rule)}")
    return Server(RuleOracle(oracle, task, ledger, rule), checked.unchecked(), rule)


@dataclass
class RuleOracle:
    """Measures coalitions under a server's rule; the server's states are replayed from the ledger as rounds come."""

    inner: Oracle
    task: Task
    ledger: Ledger
    rule: Rule
    _steps: list[ReplayedRound] = field(default_factory=list)  # the last one replayed
    _held: list[tuple[Round, Round]] = field(default_factory=list)  # the last round, and its clients' contributions

    @property
    def measure(self) -> Measure:
        """Loss or accuracy."""
        found: Measure = getattr(self.inner, "measure", "loss")
        return found

    @property
    def n_blocks(self) -> int:
        """The number of blocks of test samples."""
        return self.task.n_blocks

    def __reduce__(self) -> Any:
        raise UsageError(f"the rule {rule_name(self.rule)} is measured on this machine alone; leave --engine ray out")

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """(n_mixtures, n_blocks): the utility of each coalition on each block of test samples."""
        state = self._state(round_.entry.round_index)
        if isinstance(self.rule, LinearRule):
            return self.inner.utilities(self._contributions(round_, self.rule, state), mixtures)
        return self._one_by_one(round_, mixtures, state)

    def model(self, round_: Round, mixtures: Mixtures, row: int) -> Model:
        """What the server would have made of one coalition; of nobody, the global model."""
        if mixtures.is_empty[row]:
            return round_.global_model
        return self._model(round_, mixtures, row, self._state(round_.entry.round_index))

    def _one_by_one(self, round_: Round, mixtures: Mixtures, state: State) -> Utilities:
        found = np.zeros((len(mixtures), self.n_blocks))
        wanted = np.flatnonzero(~mixtures.is_empty)
        plain = LoopOracle(self.task, self.measure)
        for places in np.split(wanted, range(TOGETHER, len(wanted), TOGETHER)):
            models = {n: self._model(round_, mixtures, place, state) for n, place in enumerate(places.tolist())}
            alone = Mixtures(np.eye(len(models), dtype=bool), np.ones(len(models)), False)
            if models:
                found[places] = plain.utilities(Round(round_.entry, round_.global_model, models, {}), alone)
        return found

    def _model(self, round_: Round, mixtures: Mixtures, place: int, state: State) -> Model:
        """What the server would have made of one coalition."""
        members = [k for k in _order(round_) if mixtures.memberships[place, k]]
        if len(members) < int(mixtures.memberships[place].sum()):
            raise ModelError(f"round {round_.entry.number}: a coalition has members without a model in this round")
        held = {**round_.client_models, **round_.apart_models}
        arrays = [arrays_of(held[k]) for k in members]
        made, _ = self.rule.aggregate(
            arrays_of(round_.global_model), arrays, [float(mixtures.weights[k]) for k in members], state
        )
        return model_of(made, round_.global_model)

    def _contributions(self, round_: Round, rule: LinearRule, state: State) -> Round:
        """The round with every client's contribution in place of its model; kept for the next batch of the round."""
        if not self._held or self._held[0][0] is not round_:
            before = arrays_of(round_.global_model)
            models = {**round_.client_models, **round_.apart_models}
            made = {
                k: model_of(rule.contribution(before, arrays_of(model), state), round_.global_model)
                for k, model in models.items()
            }
            self._held = [(round_, Round(round_.entry, round_.global_model, made, {}))]
        return self._held[0][1]

    def _state(self, round_index: int) -> State:
        """The server's state in a round, replayed from the last one that was asked for, or from the first."""
        last = self._steps[-1].following.round_index - 1 if self._steps else -1
        if last != round_index:
            start = self._steps[-1].following if self._steps and last < round_index else None
            for step in replayed(self.ledger, self.rule, start):
                self._steps = [step]
                if step.following.round_index > round_index:
                    break
        return self._steps[-1].state


def _order(round_: Round) -> list[int]:
    """Clients in the order in which the server added them; then those whose answers are predicted, or kept apart."""
    return list(dict.fromkeys([*round_.entry.participants, *round_.client_models, *round_.apart_models]))


_KNOWN: dict[str, tuple[tuple[str, ...], LedgerCheck]] = {}
"""The last check: who observes a ledger again, or a longer one, does not read again what was settled then."""


def _checked(ledger: Ledger, rule: Rule) -> LedgerCheck:
    key = json.dumps([str(ledger.folder.absolute()), rule.document()])
    files = tuple(entry.sha256 for entry in ledger.entries)
    earlier, known = _KNOWN.get(key, ((), None))
    if files[: len(earlier)] != earlier:
        known = None
    checked = check_ledger(ledger, rule, known)
    _KNOWN.clear()
    _KNOWN[key] = (files, checked)
    return checked
