"""What methods value: a recorded federation, or utilities that were measured elsewhere.

In: a ledger, a task and settings. Out: valuations by any method. Rounds are opened once, coalitions measured once, each
completion made once, whichever methods ask for them.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, stream
from fedworth.coalitions import coalitions_of
from fedworth.completion.completion import Completion
from fedworth.completion.embeddings import EmbeddingLedger, EstimatedEmbeddings
from fedworth.completion.models import NothingAbsent, complete_by_models
from fedworth.completion.models.holdout import n_checks
from fedworth.errors import CompletionError, TooManyError, UsageError, ValuationError
from fedworth.games.budget import Budget
from fedworth.games.client_noise import noise_notes
from fedworth.games.effort import USUAL_PASSES
from fedworth.games.ensemble import has_outputs
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import Game, MatrixGame, ModelGame
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.observe import n_planned, planned_permutations, utility_matrix
from fedworth.games.shapley import MOST_ENUMERATED
from fedworth.games.subset import stratified_subset
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, Oracle
from fedworth.oracle.server import server_of
from fedworth.oracle.store import LedgerStore, Session
from fedworth.oracle.weighting import participation
from fedworth.storage import Progress, silent
from fedworth.task.cells import Cells, Undivided, cells_of, cells_of_blocks, divide
from fedworth.task.task import Task, checked_task
from fedworth.valuation.interactions import Interaction, interactions_of, shapiq_game_of
from fedworth.valuation.methods import GameSource, headline, value_by
from fedworth.valuation.settings import ValuationSettings, WorkSettings
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.vertical import with_disputes

if TYPE_CHECKING:
    import shapiq

CLIPPED = "every update was rescaled to the median length of its round, as asked (--clip median)"

Refusals = tuple[tuple[str, str], ...]
"""(method, why it gave no values)."""


def game_notes(settings: ValuationSettings) -> tuple[str, ...]:
    """Notes on a game other than the plain one: clients valued as one, or in every coalition."""
    notes = [
        f"clients {text} are valued as one, as asked; those of them that a round values have equal parts of its value"
        for text in settings.as_one
    ]
    if settings.given:
        notes.append(f"a value is what the client adds to what {', '.join(settings.given)} can do alone (--given)")
    return tuple(notes)


class Federation(GameSource):
    """A recorded federation to be valued.

    Example:
        federation = fedworth.Federation(ledger, task)
        print(federation.value("comfedsv-models")["north"].value, federation.value("fedsv").values)
    """

    def __init__(
        self,
        ledger: Ledger,
        task: Task,
        settings: ValuationSettings | None = None,
        *,
        work: WorkSettings | None = None,
        oracle: Oracle | None = None,
        session: Session | None = None,
        progress: Progress = silent,
        sampled: bool | None = None,
    ) -> None:
        """Open a ledger for valuation.

        Args:
            ledger: The recorded federation.
            task: What its models are judged by.
            settings: How it is valued.
            work: Where coalitions are measured.
            oracle: What measures coalitions; the settings' oracle if not given. Unless its task has blocks of test
                samples, the test set's part of the uncertainty is not known.
            session: What this process remembers of the same ledger and task, for a ledger that grows.
            progress: Called with what is being done, how many parts are done and how many there are.
            sampled: Whether coalitions of up to 12 clients are sampled; decided by the time of an evaluation if not
                given.
        """
        settings, work = settings or ValuationSettings(), work or WorkSettings()
        task = checked_task(task, f"the task for {ledger.folder}")
        if both := [name for name in settings.given if name in settings.without]:
            raise UsageError(f"--given {both[0]}: is also left out; choose one of the two")
        ledger = ledger.without(settings.without)
        super().__init__(settings, ledger.clients, participation(ledger), progress, sampled)
        self.progress, self.left_out = progress, ledger.left_out
        self.is_vertical = self.effort.is_vertical = ledger.form is not None
        if self.is_vertical:
            _refuse_for_vertical(self.settings, work)
            ledger = EmbeddingLedger.of(ledger, self.settings.unsent)
        elif self.settings.unsent != ValuationSettings.unsent:
            raise UsageError(f"--unsent {self.settings.unsent}: is for vertical federations; leave it out")
        weighting = self.settings.weighting or ledger.aggregation
        _refuse_groups(self.settings, oracle is not None, "an oracle that was given")
        if oracle is None:
            most = 2**MOST_ENUMERATED  # coalitions of a round; of large rounds fewer are drawn
            n_coalitions = sum(min(most, 2 ** len(ledger.participants(t))) for t in range(ledger.n_rounds))
            oracle, self.test_set = _oracle(task, self.settings, work, n_coalitions)
        else:
            self.test_set = cells_of(oracle.task)
        server = server_of(ledger, oracle, weighting, as_average=self.settings.as_average)
        is_clipped = self.settings.clip is not None
        store = LedgerStore(ledger, server, weighting, session, is_clipped) if work.cache else None
        cells = None if isinstance(self.test_set, Undivided) else self.test_set
        notes = ledger.warnings() + server.notes + noise_notes(ledger, oracle, weighting)
        notes += (CLIPPED,) if is_clipped else ()
        notes += game_notes(self.settings) + _weighted(cells)
        self.recorded: RecordedFederation = RecordedFederation(
            ledger, server.oracle, weighting, notes, store, is_clipped, cells
        )
        if isinstance(ledger, EmbeddingLedger) and not ledger.is_whole:
            self.estimated = EstimatedEmbeddings(self.recorded, ledger)
        self._values: dict[str, Valuation] = {}
        self._asked: tuple[str, ...] = ()  # methods that are valued together, for a forecast
        self._n_predicting = 0  # evaluations for predicted models, for a forecast
        self.effort.n_beside = self._n_beside

    @property
    def notes(self) -> tuple[str, ...]:
        return self.recorded.notes

    def game(self, round_index: int) -> Game:
        """The game among a round's participants."""
        return self.recorded.game(round_index)

    def observe(self, budget: Budget | None = None) -> UtilityMatrix:
        """Measure the seen part of the paper's utility matrix, within a budget."""
        permutations = planned_permutations(self.participants, self.settings.permutations, seed=self.settings.seed)
        budget = budget or self.settings.budget
        return utility_matrix(self.recorded, permutations, budget=budget, progress=self.progress)

    def utility_matrix(self) -> UtilityMatrix:
        """The seen part of the paper's utility matrix; measured once."""
        return self._matrix

    def by_models(self) -> Completion:
        """The completion by predicted models."""
        return self._models

    def value(self, method: str | None = None) -> Valuation:
        """What each client is worth by one method, that of reports if none is named; made once."""
        method = method or headline(is_vertical=self.is_vertical)
        if method not in self._values:
            self._values[method] = value_by(self, method)
            for t in range(self.recorded.n_rounds):
                self.recorded.keep(t)
        return self._values[method]

    def interactions(self) -> tuple[Interaction, ...]:
        """The Shapley interaction index of every pair of clients, the most redundant pair first.

        In a vertical federation it is of what their embeddings tell, by the refitted head.

        Returns:
            The pairs; below 0 the two are redundant, above 0 they complement each other.

        Example:
            pair = federation.interactions()[0]
            print(pair.first, pair.second, pair.index)
        """
        return interactions_of(self)

    def shapiq_game(self) -> "shapiq.Game":
        """Everyone's game for the library `shapiq`, whose approximators and plots then work on a ledger.

        Returns:
            The game; its player i is the i-th client that took part.

        Example:
            game = federation.shapiq_game()
        """
        return shapiq_game_of(self)

    def slow_methods(self, names: Iterable[str]) -> tuple[str, ...]:
        """The methods that would take more than a minute, since they measure many coalitions.

        With a limit of seconds, those that would exceed it together with sampling and the methods before them.
        """
        game, has_limit = self._first_game, self.settings.budget.seconds is not None
        if game is None or self.settings.budget.precision == 0 or not has_outputs(game):
            return ()
        slow, n_before = [], int(self._n_passes.sum()) if has_limit else 0
        for name in names:
            n = 0 if name == "fedsv" else self._n_measured(name)
            if n and not self.effort.is_cheap(game, n_before + n):
                slow.append(name)
            elif has_limit:
                n_before += n
        return tuple(slow)

    def slow_reason(self, name: str) -> str:
        """Why a method was left out that would take long."""
        n = self._n_measured(name)
        return (
            f"left out, since it takes {n:,} evaluations of the whole test set; to have it: "
            f"fedworth value LEDGER --method {name}"
        )

    def _n_measured(self, name: str) -> int:
        """How many coalitions a method measures whatever precision is asked for."""
        sizes, passes = self.participants.sum(axis=1), self._n_passes
        if name == "leave-one-out":
            return int((sizes + 1).sum())
        if name == "fedsv-equal":  # on other models
            return int(passes.sum())
        if name == "fedsv" and not self.participants[:, self.recorded.heard].all():
            return int((passes - sizes).sum())  # single clients are known
        if name == "comfedsv":
            try:
                permutations = planned_permutations(
                    self.participants, self.settings.permutations, seed=self.settings.seed
                )
            except TooManyError:
                return 0  # it will be refused
            return n_planned(self.participants, permutations)
        return 0

    @property
    def _n_passes(self) -> Floats:
        """(n_rounds,): about how many evaluations the game of each round's participants takes."""
        sizes = self.participants.sum(axis=1)
        sampled = np.inf if self.settings.budget.precision == 0 else sizes + 2 + USUAL_PASSES
        return np.asarray(np.minimum(sampled, 2.0 ** np.minimum(sizes, 30) - 1))

    def plan(self, names: Iterable[str]) -> None:
        """Say which methods will be asked for, so that a forecast counts them all."""
        self._asked = tuple(names)

    def _n_beside(self) -> int:
        """Evaluations beside those of the first games that are shared out: predictions, other methods and scores."""
        is_exact = not self.effort.sampled and len(self.recorded.heard) <= MOST_ENUMERATED  # all coalitions are known
        others = {name: self._n_measured(name) for name in self._asked}
        on_other_models = others.pop("fedsv-equal", 0)
        if not self._n_predicting:
            others.pop("fedsv", None)  # the same games
        known = 0 if is_exact else max(others.values(), default=0)  # the others ask for the same coalitions
        n_scores = 0
        if "leave-one-out" in self._asked:
            last = {int(np.flatnonzero(column)[-1]) for column in self.participants.T if column.any()}
            n_scores = len({0, *last})
        return self._n_predicting + on_other_models + known + n_scores

    @property
    def _first_game(self) -> ModelGame | None:
        """The first round's game that has clients."""
        return next((self.recorded.game(t) for t in range(len(self.participants)) if self.participants[t].any()), None)

    @cached_property
    def _matrix(self) -> UtilityMatrix:
        return self.observe()

    @cached_property
    def _models(self) -> Completion:
        recorded = self.recorded
        if self.estimated is not None:
            return self.estimated
        is_whole = len(recorded.heard) and recorded.participants[:, recorded.heard].all()
        if is_whole or self.is_vertical:  # a client that was absent from a vertical federation has learned nothing
            return NothingAbsent(recorded)
        game, n, n_rounds = self._first_game, len(recorded.heard), recorded.n_rounds
        checks = {few: n_checks(self.participants, few=few) for few in (False, True)}
        n_all = (2**n - 1) * n_rounds if n <= MOST_ENUMERATED else checks[False]
        is_long = game is not None and self.effort.is_long(game, n_all)
        if game is not None and is_long:
            n_alone = 2 * int(self.participants.sum())  # their utilities, and outputs that show who is alike
            self._n_predicting = n_alone + checks[True]
            self.effort.forecast(game, n, n_rounds)
        return complete_by_models(recorded, few_checks=is_long, progress=self.progress)


def _refuse_for_vertical(settings: ValuationSettings, work: WorkSettings) -> None:
    """Refuse options about models that are averaged, where clients send embeddings."""
    given = {
        "--weighting": settings.weighting is not None,
        "--clip": settings.clip is not None,
        "--engine ray": work.engine == "ray",
    }
    for option, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{option}: is for models that are averaged, and this federation is vertical; leave it out"
            )


def _refuse_groups(settings: ValuationSettings, is_undivided: bool, what: str) -> None:
    """Refuse options about groups where test samples have none."""
    if is_undivided and (settings.by is not None or settings.group_shares is not None):
        raise UsageError(f"groups of test samples: not known of {what}; leave out by and group_shares")


def _weighted(cells: Cells | None) -> tuple[str, ...]:
    """That values are for another population than the test set, if they are."""
    if cells is None or cells.population is None:
        return ()
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(cells.groups, cells.population, strict=True))
    return (
        f"values are for a population with these shares of the groups by {cells.by}, not for the test set's: {shares}",
    )


def _oracle(
    task: Task, settings: ValuationSettings, work: WorkSettings, n_coalitions: int
) -> tuple[Oracle, Cells | Undivided]:
    """The oracle that the settings ask for, on the device and engine of the work, and the cells that it measures."""
    if settings.test_samples is not None:
        task = stratified_subset(task, settings.test_samples, rng=stream(settings.seed, "test samples"))
    task, cells = divide(
        task, task.criterion(settings.measure), settings.by, settings.group_shares, n_coalitions=n_coalitions
    )
    task = task if work.device == "cpu" else task.to(device_named(work.device))
    is_remote = work.engine == "ray"
    # measures of the same outputs cost nothing, and show where the order of clients depends on the measure
    also = tuple(one.name for one in task.judged_by.measures if settings.measure == "loss" and not one.is_whole)
    n_threads = 1 if is_remote else work.n_threads
    oracle: Oracle = FastOracle(task, settings.measure, n_threads, also)
    if settings.oracle == "loop":
        oracle = LoopOracle(task, settings.measure, also)
    if not is_remote:
        return oracle, cells
    from fedworth.oracle.ray_oracle import RayOracle

    return RayOracle(oracle, work.address), cells


def device_named(name: str) -> torch.device:
    """`cpu`, or another device that torch can compute on in float64, as losses are summed; such as `cuda` or `cuda:1`.

    A GPU's convolutions are then done in float32 as asked, not in TF32, which has ten bits.
    """
    try:
        float(torch.zeros(1, dtype=torch.float64, device=name))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        seen = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
        reason = str(error).strip().partition("\n")[0][:120]
        raise UsageError(
            f"--device {name}: torch cannot compute there ({reason}); it sees {seen}; name one of these, or install a "
            "torch that was built for the device"
        ) from error
    device = torch.device(name)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return device


class MeasuredUtilities(GameSource):
    """Utilities that were measured elsewhere, as a source of games; no models are known."""

    def __init__(self, matrix: UtilityMatrix, settings: ValuationSettings) -> None:
        _refuse_groups(settings, True, "given utilities")
        super().__init__(settings, matrix.clients, matrix.participants)
        self.matrix, self.test_set = matrix, cells_of_blocks(matrix.n_blocks)

    @property
    def notes(self) -> tuple[str, ...]:
        return game_notes(self.settings)

    def game(self, round_index: int) -> Game:
        """The game among a round's participants, as far as its utilities are known."""
        return MatrixGame(self.matrix, round_index, np.flatnonzero(self.participants[round_index]))

    def utility_matrix(self) -> UtilityMatrix:
        return self.matrix

    def by_models(self) -> NoReturn:
        raise ValuationError("completion by models needs the clients' models, and only utilities are known")

    def value(self, method: str = "comfedsv") -> Valuation:
        return value_by(self, method)


def values_by(source: Federation | MeasuredUtilities, methods: Iterable[str]) -> tuple[tuple[Valuation, ...], Refusals]:
    """Valuations by several methods, and the methods that were refused, with the reason; an error if `strict`."""
    methods = list(methods)
    if isinstance(source, Federation):
        source.plan(methods)
    valuations: list[Valuation] = []
    refusals: list[tuple[str, str]] = []
    for method in methods:
        try:
            valuations.append(source.value(method))
        except (CompletionError, ValuationError) as error:
            if source.settings.strict:
                raise
            refusals.append((method, str(error)))
    if source.is_vertical:
        return with_disputes(valuations, [method for method, _ in refusals]), tuple(refusals)
    return tuple(valuations), tuple(refusals)


def completed_arrays(source: GameSource, completion: Completion) -> dict[str, NDArray[Any]]:
    """A completed utility matrix as arrays: every coalition of the clients that took part, in every round."""
    n_heard, n_clients = len(completion.heard), len(completion.clients)
    if n_heard > MOST_ENUMERATED:
        raise TooManyError(
            f"{n_heard} clients have {2**n_heard:,} coalitions: a completed matrix is written for at most "
            f"{MOST_ENUMERATED}; value the ledger instead"
        )
    local = coalitions_of(np.arange(n_heard), n_heard)
    coalitions = np.zeros((len(local), n_clients), dtype=bool)
    coalitions[:, completion.heard] = local
    cells = [completion.game(t).utilities(local).sum(axis=1) for t in range(completion.n_rounds)]
    return {
        "clients": np.array(completion.clients, dtype=np.str_),
        "participants": np.asarray(source.participants),
        "coalitions": coalitions,
        "utilities": np.stack(cells),
    }


def value(utilities: UtilityMatrix, method: str = "comfedsv", settings: ValuationSettings | None = None) -> Valuation:
    """What each client is worth by one method, from utilities.

    Args:
        utilities: The measured utilities; a ledger is valued by `Federation(ledger, task).value(method)`.
        method: A name of the registry, such as `comfedsv`, `fedsv`, `all-clients-round` or `leave-one-out`.
        settings: Rank and penalty of the completion, what to do with unseen coalitions, seed.

    Returns:
        The values, their uncertainty, and notes.

    Example:
        fedworth.value(utilities, "fedsv")["north"].value
    """
    return value_by(MeasuredUtilities(utilities, settings or ValuationSettings()), method)
