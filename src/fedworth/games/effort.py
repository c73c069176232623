"""How much is measured for Shapley values: all coalitions or some, and how many passes.

One function decides (`Effort.is_sampled`), from the number of clients and the processor time of an evaluation:

    all coalitions          up to 12 clients, where that takes at most a minute for all rounds
    the ensemble            where utilities are sums over test samples (`games.ensemble`)
    sampled coalitions      games of more than 12 clients without outputs (`games.sampled`)

Sampling stops when the error of the sum over rounds is at most `Budget.precision` of the test set's standard error,
both root mean squares over clients. The test set's part of a sum is nearly the sum of its rounds' parts, since a sample
that is hard in one round is hard in the next, while sampling errors of rounds are independent. So later rounds need
few passes. A round also stops when it is that precise by itself: it cannot make up for the errors of rounds before.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fedworth.arrays import Floats, Indices
from fedworth.coalitions import coalitions_of
from fedworth.games.budget import Budget
from fedworth.games.ensemble import (
    DependentSamplesError,
    Estimate,
    batches_of,
    ensemble_shapley,
    has_outputs,
)
from fedworth.games.game import Game, ModelGame, Sampled, Shares, SharingRule
from fedworth.games.rules import to_large
from fedworth.games.sampled import sampled_shapley
from fedworth.games.shapley import MOST_ENUMERATED, exact_shares, most_enumerated, shapley_values
from fedworth.oracle.oracle import fitted, quality, threads_of
from fedworth.oracle.store import ChangedModuleError
from fedworth.storage import Progress, silent

CHEAP_SECONDS = 60.0
"""All coalitions are measured if that takes at most this long, for all rounds together."""

FEWEST_SAMPLED = 5
"""With fewer clients all coalitions are hardly more evaluations than a sample."""

N_TIMED, FEWEST_TIMED, MOST_TIMED_SECONDS = 64, 8, 0.2
"""Evaluations are timed on this many samples, and fast ones on up to this many coalitions, for about a second."""

N_TIMED_AGAIN, MOST_AGAIN_SECONDS = 256, 1.0
"""Where that is fast, they are timed on as many as a module takes at a time, which may be slower per sample."""

USUAL_PASSES = 6
"""Passes beyond those of single clients that a forecast assumes."""

MOST_UNLIMITED = 64
"""Most passes of a round without a budget: with diverging models they would never be enough."""

LONG_SECONDS = 600.0
"""A longer forecast says what would shorten it."""

LEAST_PART = 0.05
"""The test set's part of the spread of batches is at least this, however large the draws' part is said to be."""

UNUSABLE = 20.0
"""No server would use a client's model alone if its loss is this many times the global model's."""

UNUSABLE_NOTE = (
    "the model of {0} alone has a loss of {1:.3g} where the global model has {2:.3g} (round {3}): values are dominated "
    "by small coalitions that no server would use; `fedworth value LEDGER --method large-coalitions` leaves these out, "
    "and with --weighting fixed each update counts only as much as it did"
)

UNUSABLE_EMBEDDINGS = (
    "with the new embeddings of {0} alone the loss is {1:.3g}, and it was {2:.3g} before (round {3}): values are "
    "dominated by embeddings that no server would use, and by their return to usual ones; ask {0} in which scale it "
    "sends them, and compare with `--method refitted-head`"
)

log = logging.getLogger("fedworth.effort")


@dataclass
class Effort:
    """Shares out games by Shapley within a budget; one for all methods of a federation, whose oracle is timed once."""

    budget: Budget = field(default_factory=Budget)
    progress: Progress = silent
    sampled: bool | None = None  # whether passes are saved; decided once, see `is_long`
    is_vertical: bool = False
    n_beside: Callable[[], int] = int  # evaluations that a forecast adds: for predictions, other methods and scores
    _is_forecast: bool = False
    _seconds: float | None = None  # of an evaluation among many
    _seconds_of_pass: float | None = None  # of one by itself
    _seconds_of_draw: float = 0.0  # of one on batches with coalitions of their own

    def is_sampled(self, game: Game, n_games: int = 1) -> bool:
        """Whether coalitions of a game are sampled, if there are `n_games` like it."""
        n = len(game.clients)
        if n > max(most_enumerated(game), MOST_ENUMERATED if self.budget.precision == 0 else 0):
            return True
        return n >= FEWEST_SAMPLED and self.is_long(game, (2**n - 1) * n_games)

    def is_long(self, game: Game, n_evaluations: int) -> bool:
        """Whether `n_evaluations` are more than the budget, or a minute, allows, so that passes are saved.

        This is decided once for a federation, whatever is known already: the same report has the same values.
        """
        if not has_outputs(game) or self.budget.precision == 0:
            return False
        if self.sampled is None:
            most = self.budget.evaluations
            self.sampled = (most is not None and n_evaluations > most) or not self.is_cheap(game, n_evaluations)
        return self.sampled

    def is_cheap(self, game: ModelGame, n_evaluations: int) -> bool:
        """Whether `n_evaluations` of a federation's coalitions take at most a minute."""
        limit = min(CHEAP_SECONDS, self.budget.seconds or math.inf)
        return n_evaluations * self.seconds_of(game) <= limit

    def seconds_of(self, game: ModelGame) -> float:
        """The time of one evaluation among many, measured once.

        Where a pass is fast, the oracle is timed on some coalitions: it may share work among them.
        """
        if self._seconds is None:
            n, seconds = len(game.clients), self.seconds_of_pass(game)
            if seconds < MOST_TIMED_SECONDS and seconds * 2**n > 1:
                n_timed = int(np.clip(1 / seconds, FEWEST_TIMED, N_TIMED))
                rows = coalitions_of(np.arange(min(n, 7)), n)[1 : n_timed + 1]
                rows = rows[~game.memory.knows(rows)]
                game.utilities(rows[:1])  # finds a route
                started = time.process_time()
                game.utilities(rows[1:])
                shared = time.process_time() - started
                seconds = min(seconds, shared / max(1, len(rows) - 1)) if len(rows) > 1 else seconds
            self._seconds = seconds
        return self._seconds

    def seconds_of_pass(self, game: ModelGame) -> float:
        """The time of one evaluation by itself, measured once on a few samples.

        With it that of a pass is measured in which each batch has a coalition of its own, and so a model to be mixed.
        Processor time is measured, so that other work on the machine does not change what is decided.
        """
        if self._seconds_of_pass is None:
            n_samples, n = len(game.oracle.task.labels), len(game.clients)
            some, more = (np.arange(min(size, n_samples)) for size in (N_TIMED, N_TIMED_AGAIN))
            batches = batches_of(n_samples)
            nobody, half = np.zeros(n, dtype=bool), np.arange(n) < n / 2
            found = game.measured_outputs(np.stack([nobody, nobody, half, nobody]), [some, some, batches[0], more])

            def seconds_of_next() -> float:
                started = time.process_time()
                next(found)
                return time.process_time() - started

            next(found)  # with the checks before it
            each = seconds_of_next() / len(some)
            self._seconds_of_draw = seconds_of_next() * len(batches)
            if each * len(more) < MOST_AGAIN_SECONDS:
                each = seconds_of_next() / len(more)
            self._seconds_of_pass = each * n_samples
        return self._seconds_of_pass

    def forecast(self, game: ModelGame, n_clients: int, n_games: int) -> None:
        """Log, once and before it starts, what games of `n_clients` take, and what would shorten it.

        Args:
            game: One of the games, or of the same oracle.
            n_clients: Clients of each game.
            n_games: How many games there are.
        """
        if self._is_forecast:
            return
        self._is_forecast = True
        one, n_all, n_more = self.seconds_of_pass(game), n_games * (2**n_clients - 1), self.n_beside()
        every = n_all * self.seconds_of(game) if n_clients <= MOST_ENUMERATED else math.inf
        if n_clients < FEWEST_SAMPLED or self.budget.precision == 0:
            plan = f"measuring all coalitions of {n_clients} clients: {n_all:,}"
            expected = every + n_more * self.seconds_of(game)
        else:
            n_passes = (n_clients + 2 + USUAL_PASSES) * n_games
            why = "too many coalitions to measure all"
            if every < math.inf:
                why = f"all {n_all:,} coalitions would take about {time_text(every)}"
            since = f"since one evaluation takes {time_text(one)} and {why}"
            plan = f"sampling coalitions of {n_clients} clients, {since}: about {n_passes:,}"
            drawn = USUAL_PASSES * n_games
            expected = (n_passes - drawn + n_more) * one + drawn * self._seconds_of_draw
        more = f", {n_more:,} for predictions, other methods and scores" if n_more else ""
        model = sum(t.numel() * t.element_size() for t in game.round_.global_model.values())
        memory = bytes_text((n_clients + 2) * model)
        log.info(f"{plan} evaluations in {n_games} rounds{more}, {time_text(expected)}, {memory} of memory for models")
        if expected > LONG_SECONDS and self.budget.seconds is None and self.budget.evaluations is None:
            log.info(
                "this is long: --test-samples 1000 measures on fewer samples (a quarter of them doubles intervals), "
                "--precision 1 allows a sampling error as large as the test set's, --seconds stops in time, and "
                "--engine ray or --device use more processors"
            )

    def start(self, n_games: int, n_clients: int) -> "Run":
        """The rule that shares out `n_games`, one after the other, and adds up their errors."""
        return Run(self, n_games, n_clients)


class Run:
    """Shares out the games of one run; a sharing rule that remembers the rounds before."""

    def __init__(self, effort: Effort, n_games: int, n_clients: int) -> None:
        self.effort, self.n_games, self.n_clients = effort, n_games, n_clients
        self.n_done = self.n_evaluations = 0
        self.n_passes: list[int] = []  # of the rounds that were sampled
        self.n_all = 0  # coalitions that such a round has
        self.batch_sizes = np.zeros(0, dtype=np.int64)  # known once a round is sampled
        self.by_batch = np.zeros((n_clients, 0))  # (n_clients, n_batches), summed over the rounds that were sampled
        self.sampling = np.zeros(n_clients)  # variances
        self.unusable: dict[str, tuple[float, float, int]] = {}  # client → losses of its and the global model, round
        self.stopped = ""
        self._started = time.monotonic()

    def by(self, rule: SharingRule) -> SharingRule:
        """The rule within the budget, if it is one whose coalitions can be sampled."""
        return self if rule is shapley else self._to_large if rule is to_large else self._with_progress(rule)

    def _with_progress(self, rule: SharingRule) -> SharingRule:
        """The rule, with progress by round where evaluations are slow."""

        def share(game: Game, rng: np.random.Generator) -> Shares:
            shares = rule(game, rng)
            self.n_done += 1
            self.effort.progress("measuring for other methods", self.n_done, self.n_games)
            return shares

        return share if self.effort.sampled else rule

    def _to_large(self, game: Game, rng: np.random.Generator) -> Shares:
        """What clients add to large coalitions, from the same coalitions as the Shapley values."""
        is_sampled = self.effort.is_sampled(game, self.n_games - self.n_done)
        shares = self(game, rng)
        self.unusable.clear()  # they count in small coalitions only
        if is_sampled and has_outputs(game) and game.sampled is not None:
            return game.sampled.to_large
        return replace(to_large(game, rng), n_evaluations=shares.n_evaluations)

    def __call__(self, game: Game, rng: np.random.Generator) -> Shares:
        """The shares of the next game."""
        if not self.effort.is_sampled(game, self.n_games - self.n_done):
            shares = self._all(game)
        elif has_outputs(game):
            shares = self._some(game, rng)
        else:
            shares = sampled_shapley(game, rng)
        self.n_done += 1
        self.n_evaluations += shares.n_evaluations
        if isinstance(game, ModelGame) and len(game.clients) > 1:
            self._look_for_unusable(game)
        return shares

    def _look_for_unusable(self, game: ModelGame) -> None:
        """Find clients whose models no server would use alone: they decide the values of small coalitions."""
        task, n = game.oracle.task, len(game.clients)
        if game.oracle.measure != "loss":
            return
        lone = game.utilities(np.eye(n, dtype=bool)).sum(axis=1)
        worst = int(np.argmin(lone))
        if lone[worst] > -1:  # then no loss is worth a look
            return
        with threads_of(game.oracle):
            model = fitted(game.round_, task).global_model
            before = -float(quality(task, (task.criterion("loss"),), model).sum())
        if before > 0 and before - lone[worst] > UNUSABLE * before:
            client = game.all_names[game.clients[worst]]
            self.unusable.setdefault(client, (before - float(lone[worst]), before, game.round_.entry.number))

    def _all(self, game: Game) -> Shares:
        if self.n_done == 0 and has_outputs(game):
            n = len(game.clients)
            if not self.effort.is_cheap(game, (2**n - 1) * self.n_games):
                self.effort.forecast(game, n, self.n_games)
        return exact_shares(game, shapley_values)

    def _some(self, game: ModelGame, rng: np.random.Generator) -> Shares:
        n, clients = len(game.clients), game.clients
        if not len(self.batch_sizes):
            self.batch_sizes = np.array([len(batch) for batch in batches_of(len(game.oracle.task.labels))])
            self.by_batch = np.zeros((self.n_clients, len(self.batch_sizes)))
        if game.sampled is None:
            try:
                game.sampled = self._sample(game, rng)
            except DependentSamplesError:
                return self._all(game) if n <= MOST_ENUMERATED else sampled_shapley(game, rng)
        shares = game.sampled.shapley
        self.by_batch[clients] += game.sampled.by_batch
        self.sampling[clients] += np.diag(shares.sampling_covariance)
        self.n_passes.append(shares.n_evaluations)
        self.n_all = max(self.n_all, 2**n - 1)
        return shares

    def _sample(self, game: ModelGame, rng: np.random.Generator) -> Sampled:
        """Sample a game that no other method has sampled yet."""
        self.effort.forecast(game, len(game.clients), self.n_games)
        n = len(game.clients)
        self._show_progress(0, n)

        def show(n_here: int) -> None:
            self._show_progress(n_here, n)

        def is_enough(found: Estimate) -> bool:
            show(n + 2 + found.n_passes)
            return self._is_enough(found, game.clients)

        if game.kept is None:
            return ensemble_shapley(game, rng, is_enough, show)
        state = rng.bit_generator.state
        try:
            return ensemble_shapley(game, rng, is_enough, show)
        except ChangedModuleError:
            log.info("kept outputs are not those of this module any more, so they are measured again")
            game.kept.forget()
            rng.bit_generator.state = state
            return ensemble_shapley(game, rng, is_enough, show)
        finally:
            game.kept.save()

    def _is_enough(self, found: Estimate, clients: Indices) -> bool:
        """Whether the sum over the rounds so far is as precise as asked, or the budget is spent."""
        sums = self.by_batch[:, : found.by_batch.shape[1]].copy()
        sums[clients] += found.by_batch
        sampling = self.sampling.copy()
        sampling[clients] += np.diag(found.covariance)
        ratio = min(
            ratio_of(found.by_batch, found.batch_sizes, np.diag(found.covariance)),
            ratio_of(sums, found.batch_sizes, sampling),
        )
        if ratio <= self.effort.budget.precision:
            return True
        part, budget = (self.n_done + 1) / self.n_games, self.effort.budget
        n_spent = self.n_evaluations + len(clients) + 2 + found.n_passes
        has_limit = (budget.evaluations, budget.seconds) != (None, None)
        if not has_limit and found.n_passes >= MOST_UNLIMITED:
            self.stopped = (
                f"a round takes about {MOST_UNLIMITED} passes at most, unless --budget or --seconds allow more"
            )
        elif budget.evaluations is not None and n_spent >= budget.evaluations * part:
            self.stopped = "the budget of evaluations was spent"
        elif budget.seconds is not None and time.monotonic() - self._started >= budget.seconds * part:
            self.stopped = "the time was over"
        else:
            return False
        return True

    def _show_progress(self, n_here: int, n_clients: int) -> None:
        """Progress in passes; the rounds to come are expected to take as many as those so far, or the usual number."""
        before = sum(self.n_passes)
        usual = before / len(self.n_passes) if self.n_passes else n_clients + 2 + USUAL_PASSES
        total = before + round(max(usual, n_here) * (self.n_games - self.n_done))
        self.effort.progress("sampling coalitions", before + n_here, total)

    def cautions(self) -> tuple[str, ...]:
        """Those of the notes that call for care with all values, however small their errors are."""
        note = UNUSABLE_EMBEDDINGS if self.effort.is_vertical else UNUSABLE_NOTE
        return tuple(note.format(client, *losses) for client, losses in self.unusable.items())

    def notes(self) -> tuple[str, ...]:
        """What a reader of the values must know."""
        if not self.n_passes:
            return self.cautions()
        ratio = ratio_of(self.by_batch, self.batch_sizes, self.sampling)
        few, many = min(self.n_passes), max(self.n_passes)
        passes = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        sampled = f"coalitions are sampled: {passes} evaluations a round instead of {self.n_all:,}"
        since = f", since {self.stopped}" if self.stopped else ""
        return (
            f"{sampled}; the sampling error is {ratio:.2f} of the test set's standard error{since}",
            *self.cautions(),
        )


def shapley(game: Game, rng: np.random.Generator) -> Shares:
    """The Shapley values of a game: exact where measuring all coalitions takes at most a minute, otherwise sampled.

    Args:
        game: What any coalition of some clients achieves.
        rng: Draws coalitions, if they are sampled.

    Returns:
        What each client gets, with the covariance of the sampling errors.

    Example:
        shares = fedworth.shapley(federation.game(0), numpy.random.default_rng(0))
    """
    run = Effort().start(1, int(game.clients.max(initial=-1)) + 1)
    shares = run(game, rng)
    return replace(shares, notes=(*shares.notes, *run.notes()))


def test_covariance(by_batch: Floats, batch_sizes: Indices, sampling: Floats) -> Floats:
    """(n, n): the covariance that another test set would cause in values, from the spread of batches.

    Batches spread by their samples and by the draws; the draws' covariance, `sampling`, is taken off on the average.
    """
    n_batches = len(batch_sizes)
    apart = by_batch - by_batch.sum(axis=1, keepdims=True) * batch_sizes / batch_sizes.sum()
    both = apart @ apart.T * n_batches / max(n_batches - 1, 1)
    part = 1 - float(np.trace(sampling)) / max(float(np.trace(both)), 1e-300)
    return np.asarray(both * max(part, LEAST_PART))


def ratio_of(by_batch: Floats, batch_sizes: Indices, sampling: Floats) -> float:
    """The error of draws with these variances, (n,), over the test set's standard error, both rms over clients."""
    of_test_set = float(np.trace(test_covariance(by_batch, batch_sizes, np.diag(sampling))))
    return math.sqrt(float(sampling.sum()) / max(of_test_set, 1e-300))


def time_text(seconds: float) -> str:
    """A time in a suitable unit."""
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.2g} {name}" if seconds / unit < 10 else f"{seconds / unit:,.0f} {name}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{float(f'{1000 * seconds:.2g}'):g} ms"


def bytes_text(n_bytes: float) -> str:
    """A size in MB or GB."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{max(n_bytes / 1e6, 0.1):,.1f} MB"
