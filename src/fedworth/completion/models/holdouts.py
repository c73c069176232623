"""Hold-outs: how wrong the predictions are, found on answers that were heard.

Every heard answer of a round that somebody missed is predicted from all the others, in closed form, and each coalition
of that round's participants with its client is measured once more with the predicted answer in place of the heard one
(a lone client takes the lone process's word, as an absent one would). Never more than one answer is left out at once:
with more, the sign of the bias turns.

The error of a point at size k, ε_k, is the mean over its coalitions of size k of seen minus predicted utility, in
units of the round's scale g_t, and of √ρ, ρ the variance of the point's prediction over the mean of all points'. No
round shows coalitions larger than its participants; there one member's error fades as its share: ε_k = ε_K · K/k.
"""

from dataclasses import dataclass

import numpy as np

from fedworth.arrays import Floats, Indices, Memberships, Utilities, stream
from fedworth.coalitions import coalitions_of, distinct
from fedworth.completion.models.lone_process import Lone
from fedworth.completion.models.predicted import PredictedLedger
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Weighting
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.weighting import mixtures, round_weights

MOST_ENUMERATED = 6
"""With more participants some coalitions are drawn instead: a ladder of sizes, a few coalitions of each."""

N_SIZES, N_OF_A_SIZE = 6, 3
MOST_POINTS = 600
MOST_BYTES = 1 << 26
"""Of predicted models that are made in one go."""

LEAST_VARIANCE = 0.1
"""The least ρ that an error is divided by: a prediction that is nearly certain says little of the others."""


@dataclass(frozen=True)
class HoldOuts:
    """The errors of left-out answers by coalition size, and what they cost to find."""

    points: Indices  # (n_points,)
    errors: Floats  # (n_points, n_clients): column k−1 is ε_k / √ρ
    relative: Floats  # ρ, (n_points,)
    scale: Floats  # g, (n_points,): of the points' rounds
    n_evaluations: int
    is_far_alone: bool = True  # whether a lone client takes the lone process's word

    @property
    def by_size(self) -> Floats:
        """(n_clients,): the root mean square error of one member's prediction in a coalition of 1, 2, … clients."""
        return np.asarray(np.sqrt((self.errors**2).mean(axis=0)))

    @property
    def alone(self) -> Floats:
        """(n_points,): the error of the lone process, in units of g; 0 where it has no say."""
        return np.asarray(self.is_far_alone * self.errors[:, 0] * np.sqrt(self.relative))

    @property
    def in_company(self) -> Floats:
        """(n_points,): the error of a predicted model, summed over the sizes that take it, in units of g."""
        return np.asarray(self.errors[:, int(self.is_far_alone) :].sum(axis=1) * np.sqrt(self.relative))

    @property
    def size_shares(self) -> Floats:
        """(2, n_clients): what each size has of the error alone, and κ, of that in company; each in all 1."""
        first, n = int(self.is_far_alone), self.errors.shape[1]
        shares = np.zeros((2, n))
        shares[0, :first] = 1.0
        sizes = self.by_size[first:] if len(self.errors) else np.zeros(n - first)
        total = float(sizes.sum())
        shares[1, first:] = sizes / total if total > 0 else 1 / max(n - first, 1)
        return shares


def hold_outs(
    predicted: PredictedLedger, oracle: Oracle, seen: UtilityMatrix, lone: Lone, *, weighting: Weighting
) -> HoldOuts:
    """Predict what was heard; `seen` are the utilities of coalitions of participants."""
    points = held_points(predicted)
    variances = predicted.process.left_out_variances(points)
    errors, n_evaluations = np.zeros((len(points), len(predicted.heard))), 0
    for some in _together(predicted, points):
        models, rounds = predicted.left_out(points[some]), predicted.process.rounds[points[some]]
        for round_index in np.unique(rounds).tolist():
            here = np.flatnonzero(rounds == round_index)
            trial = _Trial(predicted, seen, round_index, points[some][here], [models[place] for place in here.tolist()])
            found, n_measured = trial.errors(oracle, lone, weighting)
            errors[some[here]] = found / lone.scale[round_index]
            n_evaluations += n_measured
    relative = np.maximum(variances / variances.mean(), LEAST_VARIANCE) if len(points) else variances
    scale = lone.scale[predicted.process.rounds[points]]
    scaled = errors / np.sqrt(relative)[:, None]
    return HoldOuts(points, scaled, relative, scale, n_evaluations, is_far_alone(weighting))


def held_points(predicted: PredictedLedger) -> Indices:
    """The points that are held out: those of rounds that somebody missed, evenly thinned where there are many."""
    missed = np.asarray(~predicted.known[:, predicted.heard].all(axis=1))
    points = np.flatnonzero(missed[predicted.process.rounds])
    if len(points) > MOST_POINTS:
        points = points[np.linspace(0, len(points) - 1, MOST_POINTS).astype(np.int64)]
    return points


def _together(predicted: PredictedLedger, points: Indices) -> list[Indices]:
    """The places of points whose predictions are made in one go: whole rounds, as many as MOST_BYTES of models hold,
    since all updates are read for each go."""
    rounds = predicted.process.rounds[points]
    one = sum(tensor.nbytes for tensor in predicted.answers.rounds[0].global_model.values())
    firsts = np.flatnonzero(np.diff(rounds, prepend=-1))  # where each round starts; points are in the order of rounds
    groups = (firsts * one) // MOST_BYTES
    starts = firsts[np.flatnonzero(np.diff(groups, prepend=-1))]
    return np.split(np.arange(len(points)), starts[1:]) if len(points) else []


def is_far_alone(weighting: Weighting) -> bool:
    """Whether a lone client's model lies far from the others, so that the lone process knows more of its utility than
    its predicted model does. With fixed weights it is a small step from the global model, as small as in any coalition;
    and a client that sends back the global model must add exactly nothing to a lone client too."""
    return weighting != "fixed"


@dataclass(frozen=True)
class _Trial:
    """One round in which each of some answers is replaced by its prediction."""

    predicted: PredictedLedger
    seen: UtilityMatrix
    round_index: int
    points: Indices
    models: list[Model]  # the points' predictions

    def errors(self, oracle: Oracle, lone: Lone, weighting: Weighting) -> tuple[Floats, int]:
        """(n_points, n_heard): ε_k by size, in utilities; and how many utilities were measured."""
        clients = self.predicted.process.clients[self.points]
        tested = [self._coalitions(client) for client in clients.tolist()]
        truth, guesses, n_measured = self._truth_and_guesses(oracle, clients, tested, weighting)
        ends = np.cumsum([len(coalitions) for coalitions in tested])[:-1]
        rows = []
        for point, coalitions, true, guess in zip(
            self.points.tolist(), tested, np.split(truth, ends), np.split(guesses, ends), strict=True
        ):
            sizes = coalitions.sum(axis=1)
            is_lone = (sizes == 1) & is_far_alone(weighting)
            rows.append(self._by_size(sizes, true - np.where(is_lone, lone.left_out[point], guess)))
        return np.array(rows), n_measured

    def _coalitions(self, client: int) -> Memberships:
        """Coalitions of the participants with this client, and without others of its kind."""
        present = self.predicted.answers.participants[self.round_index]
        others = np.flatnonzero(present & ~self.predicted.likeness.same_kind[client])
        if len(others) < MOST_ENUMERATED:
            rows = coalitions_of(others, len(present))
        else:
            rows = _ladder(others, len(present), stream(0, "hold-outs", self.round_index, client))
        rows[:, client] = True
        return rows

    def _truth_and_guesses(
        self, oracle: Oracle, clients: Indices, tested: list[Memberships], weighting: Weighting
    ) -> tuple[Utilities, Utilities, int]:
        """What the round showed of these coalitions; the same with the client's prediction in its place, which stands
        in a column of its own; and how many utilities were measured. What was not seen before is measured with the
        guesses, in one go."""
        weights = round_weights(self.predicted.ledger, self.round_index, weighting)
        n_clients, coalitions = len(weights), np.concatenate(tested)
        truth = self.seen.row(self.round_index, coalitions)
        unknown = np.flatnonzero(np.isnan(truth))
        rows, places = distinct(coalitions[unknown])
        wanted = np.zeros((len(rows) + len(coalitions), n_clients + len(clients)), dtype=bool)
        wanted[:, :n_clients] = np.concatenate([rows, coalitions])
        columns = np.repeat(np.arange(len(clients)), [len(some) for some in tested])
        guessed = len(rows) + np.arange(len(coalitions))
        wanted[guessed, clients[columns]], wanted[guessed, n_clients + columns] = False, True
        models = dict(enumerate(self.models, start=n_clients))
        recorded = self._recorded
        round_ = Round(recorded.entry, recorded.global_model, {**recorded.client_models, **models}, {})
        both = np.concatenate([weights, weights[clients]])
        found = oracle.utilities(round_, mixtures(wanted, both, weighting)).sum(axis=1)
        truth[unknown] = found[: len(rows)][places]
        return truth, found[len(rows) :], len(wanted)

    @property
    def _recorded(self) -> Round:
        return self.predicted.answers.rounds[self.round_index]

    def _by_size(self, sizes: Indices, errors: Floats) -> Floats:
        """(n_heard,): the mean error at each size, between the measured sizes in a line, beyond them fading."""
        shown = np.unique(sizes)
        means = [float(errors[sizes == size].mean()) for size in shown.tolist()]
        every = np.arange(1, len(self.predicted.heard) + 1)
        return np.asarray(np.interp(every, shown, means) * np.minimum(1.0, shown[-1] / every))


def _ladder(others: Indices, n_clients: int, rng: np.random.Generator) -> Memberships:
    """Some coalitions of these: none, all, and a few of sizes in between, closer together where they are small."""
    sizes = np.unique(np.geomspace(1, len(others) + 1, N_SIZES).round().astype(np.int64)) - 1
    rows = np.zeros((len(sizes), N_OF_A_SIZE, n_clients), dtype=bool)
    for row, size in zip(rows, sizes.tolist(), strict=True):
        for draw in row:
            draw[rng.choice(others, size, replace=False)] = True
    return distinct(rows.reshape(-1, n_clients))[0]
