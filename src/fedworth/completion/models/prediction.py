"""What absent clients would have answered: their models, and their utilities as coalitions of one.

Models are predicted by the process of updates (`gaussian_process`): a predicted model is the round's global model plus
a linear combination of heard updates, and the oracle measures any coalition of heard and predicted models.

A client alone is an exception. Its model lies far from all others, and the loss is convex on the way there, so that
the predicted model looks too good. Utilities of single clients therefore have a process of their own (`singleton_gp`).
Divided by the scale g_t of their round, they have the covariance

    k((i,t),(j,s)) = Σ_{p=0..3} C_ij^p m_p(t,s) + ν 1(t=s, i and j duplicates)
    m_p(t,s) = A_p + b B_p exp(−(t−s)²/200) + R_p 1(t=s)

All numbers are fixed except the noise ν and the slow variance b: from a short list the ones that predict the heard
utilities best, each from all others. They are chosen on utilities of the whole test set. A prediction is then a fixed
linear combination of heard utilities, and is applied to every block of test samples alike, so that predicted blocks add
up to the predicted total.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices
from fedworth.completion.models.gaussian_process import (
    FULL_BATCH,
    MINI_BATCH,
    MOST_POINTS,
    GaussianProcess,
    Hyperparameters,
    Similarity,
    Terms,
    excess_correlation,
    gaussian_process,
    left_out_error,
    thinned,
    update_process,
)
from fedworth.completion.models.similarity import measure_similarity
from fedworth.completion.models.updates import Updates
from fedworth.errors import CompletionError
from fedworth.games.federation import RecordedFederation
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.oracle import n_threads_of

FEWEST_CHOOSING, MOST_CHOOSING = 300, 600
"""With at least this many updates, up to this many of them choose the hyperparameters."""

ALWAYS = (0.5, 0.1, 0.1, 0.03)  # A
NEARBY = (0.1, 0.5, 0.3, 0.1)  # B
OF_ROUND = (0.1, 0.1, 0.03, 0.01)  # R
REACH = 200.0
NOISES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SLOW_VARIANCES = (1.0, 0.03)
"""Values of b: on digits the utility of a single client drifts, on two-class MNIST it hardly does."""

MOST_THINNED = 2000
"""Points that choose ν where there are more than MOST_POINTS."""

BANDWIDTH = 3.0
LEAST_SCALE = 1e-4


@dataclass(frozen=True)
class PredictedModels:
    """A recorded federation with predictions of the models that absent clients would have sent."""

    federation: RecordedFederation
    updates: Updates
    similarity: Similarity
    points: Indices  # (n_points,): the updates that the process is given, duplicates merged
    hyperparameters: Hyperparameters

    @cached_property
    def process(self) -> GaussianProcess:
        """The process of updates given the points."""
        rounds, clients = self.updates.rounds[self.points], self.updates.clients[self.points]
        return update_process(self.similarity, rounds, clients, self.hyperparameters)

    @property
    def participants(self) -> NDArray[np.bool_]:
        """(n_rounds, n_clients): who took part."""
        return self.federation.participants

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """(n_rounds, n_clients): whether a client's answer is known, from the client or a duplicate."""
        return np.asarray(self.participants @ self.similarity.duplicates)

    def absent(self, round_index: int) -> Indices:
        """The heard clients that did not take part in a round."""
        heard = self.federation.heard
        return np.asarray(heard[~self.participants[round_index, heard]])

    @cached_property
    def variances(self) -> Floats:
        """(n_rounds, n_clients): variances of predicted updates; 0 where an answer is known or a round has none."""
        found = np.zeros(self.known.shape)
        for t in np.flatnonzero(self.participants.any(axis=1)).tolist():
            found[t, self.absent(t)] = self.process.predict(self.absent(t), t)[1]
        return found

    def open_round(self, round_index: int) -> Round:
        """A round with a model of every heard client, recorded or predicted."""
        recorded, absent = self.federation.round(round_index), self.absent(round_index)
        predicted = self.combine(round_index, self.process.predict(absent, round_index)[0])
        models = {**recorded.client_models, **dict(zip(absent.tolist(), predicted, strict=True))}
        return replace(recorded, client_models={k: models[k] for k in sorted(models)})

    def combine(self, round_index: int, weights: Floats) -> list[Model]:
        """Models of a round, one for each row of the points' weights, (n_models, n_points)."""
        coefficients = np.zeros((len(weights), len(self.updates)))
        coefficients[:, self.points] = weights
        return self.updates.combine(round_index, coefficients)

    def excess_correlation(self, points: Indices) -> float:
        """By how much one client's errors correlate over rounds more than expected; 0 where there are many updates,
        whose products take long."""
        if len(self.points) >= FEWEST_CHOOSING:
            return 0.0
        return excess_correlation(self.process, points, self.updates.products(self.points))


def predict_models(federation: RecordedFederation) -> PredictedModels:
    """Predict the models of clients that some round heard, in the rounds where they were absent."""
    if len(federation.heard) == 0:
        raise CompletionError(
            f"{federation.ledger.folder}: nobody took part in any round, so no models can be predicted; "
            "record a round that somebody answers"
        )
    oracle = federation.oracle
    opened = tuple(federation.round(t) for t in range(federation.n_rounds))
    updates = Updates(opened, federation.participants, n_threads_of(oracle))
    similarity = measure_similarity(updates, oracle.task)
    points, chosen = similarity.merge_duplicates(updates.rounds, updates.clients), MINI_BATCH
    if len(points) >= FEWEST_CHOOSING:  # enough to choose those that predict left-out updates best
        some = points[thinned(len(points), MOST_CHOOSING)]
        rounds, clients, products = updates.rounds[some], updates.clients[some], updates.products(some)
        known = {each: update_process(similarity, rounds, clients, each) for each in (MINI_BATCH, FULL_BATCH)}
        chosen = min(known, key=lambda each: left_out_error(known[each], products))
    return PredictedModels(federation, updates, similarity, points, chosen)


@dataclass(frozen=True)
class Singletons:
    """Utilities of single clients: the heard ones, and predictions of the others."""

    process: GaussianProcess
    heard: Floats  # (n_points, n_columns): utilities of the process's points
    scale: Floats  # g, (n_rounds,)
    noise: float  # ν
    slow_variance: float  # b
    n_blocks: int | None = None  # the columns that add up to the utility; all if it is not given

    def utilities(self, clients: Indices, round_index: int) -> Floats:
        """(n, n_columns): predicted utilities of clients that were absent in a round."""
        weights, _ = self.process.predict(clients, round_index)
        return np.asarray(self.scale[round_index] * (weights @ self._scaled))

    def leave_out(self, points: Indices) -> tuple[Floats, Floats]:
        """(n, n_blocks), (n,): each heard utility predicted from the others, and the variances of the predictions of
        totals in units of the squared scale."""
        weights, variances = self.process.leave_out(points)
        return self.scale[self.process.rounds[points], None] * (weights @ self._scaled[:, : self.n_blocks]), variances

    @cached_property
    def _scaled(self) -> Floats:
        return np.asarray(self.heard / self.scale[self.process.rounds, None])


def singleton_gp(
    similarity: Similarity, participants: NDArray[np.bool_], utilities: Floats, n_blocks: int | None = None
) -> Singletons:
    """The process of single clients' utilities.

    `utilities`, (n_updates, n_columns), are those of all participants, ordered by round and client. The first
    `n_blocks` columns add up to the utility that the process is fitted to; others are by other measures.
    """
    rounds, clients = np.nonzero(participants)
    scale = round_scales(rounds, utilities[:, :n_blocks].sum(axis=1), len(participants))
    points = similarity.merge_duplicates(rounds, clients)
    rounds, clients, utilities = rounds[points], clients[points], utilities[points]
    scaled = utilities[:, :n_blocks].sum(axis=1) / scale[rounds]
    counted = _partial_rounds(participants)[rounds]

    def errors(slow_variance: float, some: Indices) -> Floats:
        terms = _terms(similarity, 0.0, slow_variance)
        covariance = GaussianProcess(terms, similarity.duplicates, rounds, clients).between(some, some)
        return _left_out_errors(covariance, scaled[some], counted[some])

    few = thinned(len(rounds), MOST_CHOOSING)
    slow_variance = min(SLOW_VARIANCES, key=lambda b: float(errors(b, few).min()))
    many = thinned(len(rounds), len(rounds) if len(rounds) <= MOST_POINTS else MOST_THINNED)
    noise = NOISES[int(np.argmin(errors(slow_variance, many)))]
    process = gaussian_process(_terms(similarity, noise, slow_variance), similarity, rounds, clients)
    return Singletons(process, utilities, scale, noise, slow_variance, n_blocks)


def _terms(similarity: Similarity, noise: float, slow_variance: float) -> Terms:
    t = np.arange(len(similarity.of_rounds), dtype=np.float64)
    near, same = np.exp(-((t[:, None] - t) ** 2) / REACH), np.eye(len(t))
    over_time = [a + slow_variance * b * near + r * same for a, b, r in zip(ALWAYS, NEARBY, OF_ROUND, strict=True)]
    powers = [similarity.of_clients**p for p in range(len(ALWAYS))]
    return (*zip(powers, over_time, strict=True), (noise * similarity.duplicates.astype(np.float64), same))


def _left_out_errors(covariance: Floats, known: Floats, counted: NDArray[np.bool_]) -> Floats:
    """(n_noises,): mean squared left-out errors with each noise, by one eigendecomposition; only some points count."""
    variances, axes = np.linalg.eigh(covariance)
    turned = axes.T @ known
    found = []
    for noise in NOISES:
        inverse = 1 / (np.maximum(variances, 0) + noise)
        residuals = (axes @ (inverse * turned)) / ((axes**2) @ inverse)
        found.append(float((residuals[counted] ** 2).mean()))
    return np.array(found)


def _partial_rounds(participants: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n_rounds,): rounds with some clients absent, which resemble those to be predicted; all if there are none."""
    present = participants[:, participants.any(axis=0)]
    partial = present.any(axis=1) & ~present.all(axis=1)
    return np.asarray(partial if partial.any() else np.ones(len(participants), dtype=bool))


def round_scales(rounds: Indices, utilities: Floats, n_rounds: int) -> Floats:
    """g, (n_rounds,): root mean square of each round's utilities, smoothed over rounds on a logarithmic scale.

    A round that nobody answered has the scale 0, since it adds nothing.
    """
    shown, counts = np.unique(rounds, return_counts=True)
    sizes = np.sqrt(np.bincount(rounds, utilities**2)[shown] / counts)
    logs = np.log(np.maximum(sizes, LEAST_SCALE * sizes.max(initial=0) or 1.0))
    near = np.exp(-0.5 * ((shown[:, None] - shown) / BANDWIDTH) ** 2)  # (n_shown, n_shown)
    scale = np.zeros(n_rounds)
    scale[shown] = np.exp(near @ logs / near.sum(axis=1))
    return scale
