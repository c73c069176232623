"""Methods of valuation. A method shares out a game; a row of the registry says whose game, and by which rule.

    participants        each round's game among those who took part; absent clients get 0
    by_models           everyone's game of each round, on recorded and predicted models
    by_factors          everyone's game of each round, from the utility matrix completed by factors (the paper)
    truth               everyone's game of each round, on the models that absent clients would have sent (simulations)
    all_clients_round   the game of the first round in which all clients took part

A value is the sum over the rounds. To add a method, write a function that takes a `GameSource` and returns a
`Valuation` (`share_out` makes one from a sharing rule), and register it here, or from another package by the
entry point group `fedworth.methods`: the entry's name is the method's, and the entry points to a `Method`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, cached_property
from importlib.metadata import entry_points

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, stream
from fedworth.coalitions import coalitions_of
from fedworth.completion.completion import Caveat, Completion
from fedworth.completion.factors import FactorCompletion, choose_factors, complete, with_errors
from fedworth.errors import NeverHeardError, UsageError, ValuationError, unknown_name
from fedworth.games.as_one import averaged, groups_of, sharing_as_one
from fedworth.games.effort import Effort, shapley
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import Game, GameOfColumns, Shares, SharingRule, SummedGame, everyone_of
from fedworth.games.given import given_game, given_of
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.permutations import permutation_shapley
from fedworth.games.rules import NONLINEAR, banzhaf, beta_shapley, gtg, least_core, leave_one_out, tmc, to_large
from fedworth.games.shapley import MOST_ENUMERATED, shapley_values
from fedworth.oracle.oracle import also_of
from fedworth.storage import Progress, silent
from fedworth.task.cells import Cells, Undivided
from fedworth.valuation import others
from fedworth.valuation.groups import GroupValues, group_values
from fedworth.valuation.marginals import MarginalSums
from fedworth.valuation.ranking import EQUAL
from fedworth.valuation.refitted import RefittedGame
from fedworth.valuation.settings import ValuationSettings
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation, other_orders
from fedworth.valuation.vertical import REFITTED, VERFEDSV, cautions_of

MR_DECAY = 0.9
"""What a round counts in MR, relative to the one before (λ of Song et al., 2019)."""

UNKNOWN_ESTIMATES = (
    "how far off the estimates are is not known: a completion knows the errors of Shapley values among all clients only"
)
UNKNOWN_SAMPLING = "how much the drawn coalitions change the values is not known"
NO_PARTS = "the method gives no values by block of test samples"
ALL_ALIKE = "all parts of the test set give the same values, as if one sample was repeated; look at the test set"
NOTHING_CHANGED = (
    "nothing that clients sent changed what is measured, so all values are 0 (the first embeddings of a vertical "
    "federation have no value: it needs two rounds or more)"
)
UNKNOWN = "the errors of the values are not known: {reason}"
ON_THIS_TEST_SET = "the intervals hold on this test set only: {reason}"
NO_WEIGHTS = "the method has no values by group, so it cannot give values for other shares of groups"
NO_GAME = "this measure shares out no game, and no standard errors of it are known"

HEADLINE = "comfedsv-models"
"""The method that a report shows first, if it has values by it; that of a vertical federation is the refitted head."""

GTG_SKIPPED = 0.05
"""GTG leaves out a round whose participants changed the utility by less than this part of an average round."""


class GameSource(ABC):
    """What methods value: the rounds of a federation as games; recorded, or utilities that were measured elsewhere."""

    test_set: Cells | Undivided  # the cells that utilities are measured on, if the test set is divided
    recorded: RecordedFederation | None = None  # the recorded models; None if only utilities are known
    estimated: Completion | None = None  # where even participants' games rest on estimates: embeddings of a batch
    is_vertical = False  # whether clients send embeddings of their features, and no models
    left_out: tuple[str, ...] = ()  # clients that were left out on request

    def __init__(
        self,
        settings: ValuationSettings,
        clients: tuple[str, ...],
        participants: NDArray[np.bool_],
        progress: Progress = silent,
        sampled: bool | None = None,
    ) -> None:
        self.settings, self.clients = settings, clients
        self.participants = participants  # (n_rounds, n_clients): who took part
        self.effort = Effort(settings.budget, progress, sampled)
        self.as_one = groups_of(settings.as_one, clients)
        self.given = given_of(settings.given, clients)  # they are in every coalition; the others are valued
        if both := [clients[k] for group in self.as_one for k in group if k in self.given]:
            raise UsageError(f"--given {both[0]}: is also valued as one with others; choose one of the two")
        self.sums: dict[str, tuple[Valuation, Errors]] = {}  # made so far, since one method may need another's

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What a reader of any value must know."""

    @abstractmethod
    def game(self, round_index: int) -> Game:
        """The game among a round's participants."""

    @abstractmethod
    def utility_matrix(self) -> UtilityMatrix:
        """The seen part of the paper's utility matrix."""

    @abstractmethod
    def by_models(self) -> Completion:
        """The completion by predicted models."""

    def by_factors(self) -> FactorCompletion:
        """The paper's completion of the utility matrix, with the settings' factors or cross-validated ones."""
        return self._factors

    @cached_property
    def _factors(self) -> FactorCompletion:
        matrix, settings = self.utility_matrix(), self.settings
        factors = settings.factors
        if settings.auto_rank:
            rng = stream(settings.seed, "cross-validation")
            factors = choose_factors(matrix, penalty_kind=factors.penalty_kind, rng=rng)
        found = complete(matrix, factors, unseen=settings.unseen)
        return with_errors(matrix, found) if self.recorded is None else found


class Basis(Enum):
    """Which rounds a value is about."""

    POTENTIAL = auto()  # as if the client had taken part in every round
    EARNED = auto()  # the rounds in which the client took part
    ONE_ROUND = auto()  # one round only
    OTHER = auto()


@dataclass(frozen=True)
class Method:
    """One way to value clients.

    Example:
        from fedworth import Method, share_out

        def equal_shares(game, rng):
            whole = game.utilities(np.ones((1, len(game.clients)), dtype=bool))
            ...
        METHOD = Method("equal shares", "everyone gets the same", share_out(equal_shares))
    """

    label: str  # in tables and on the page
    description: str  # what the value means, in a line
    value: Callable[[GameSource], Valuation]
    basis: Basis = Basis.OTHER
    adds_up: bool = False  # whether the values add up to what was gained in all
    needs_truth: bool = False  # whether it takes a simulation that kept every client's model
    is_slow: bool = False  # whether `compare` leaves it out unless it is named


@dataclass(frozen=True)
class RoundGames:
    """A game for each of some rounds, and the completion that made them, if one did."""

    game: Callable[[int], Game]
    rounds: Sequence[int]
    completion: Completion | None = None
    sampling: Floats | None = None  # (n_heard, n_heard), of the sums, if the rounds' draws are not independent
    decay: float = 1.0  # what a round counts, relative to the one before


@dataclass(frozen=True)
class Errors:
    """The errors of values on the test set that they were measured on."""

    estimates: Floats | None  # (n_clients, n_clients): covariance of the errors of a completion; None if unknown
    sampling: Floats  # (n_clients, n_clients): covariance of the errors of sampled coalitions
    ratios: Floats | None = None  # (n_groups,): errors of the completion by group, over those of all; None if unknown


def participants(source: GameSource) -> RoundGames:
    """Each round's game among its participants; a round that nobody answered adds nothing."""
    return RoundGames(source.game, np.flatnonzero(source.participants.any(axis=1)).tolist(), source.estimated)


def equal_length(source: GameSource) -> RoundGames:
    """As `participants`, with every update at the median length of its round."""
    return replace(participants(source), game=_recorded(source).at_equal_length.game)


def later_rounds(source: GameSource) -> RoundGames:
    """As `participants`, without the rounds in which everyone took part."""
    some = source.participants.any(axis=1) & ~_has_everyone(source)
    return RoundGames(source.game, np.flatnonzero(some).tolist(), source.estimated)


def all_clients_round(source: GameSource) -> RoundGames:
    """The first round in which all clients took part, apart from those that never did."""
    found = np.flatnonzero(_has_everyone(source) & source.participants.any(axis=1))
    if len(found) == 0:
        most, n_heard = int(source.participants.sum(axis=1).max(initial=0)), len(heard_clients(source))
        raise ValuationError(
            f"no round has all clients: at most {most} of {n_heard} took part in one; let one round ask everyone"
        )
    return RoundGames(source.game, [int(found[0])], source.estimated)


def by_models(source: GameSource) -> RoundGames:
    """Everyone's game of each round, on recorded and predicted models."""
    return _completed(source, source.by_models())


def by_models_or_factors(source: GameSource) -> RoundGames:
    """Everyone's game of each round: by models, or by factors where only utilities are known."""
    return _completed(source, source.by_factors() if source.recorded is None else source.by_models())


def _completed(source: GameSource, completion: Completion) -> RoundGames:
    return RoundGames(completion.game, range(len(source.participants)), completion)


def truth(source: GameSource) -> RoundGames:
    """Everyone's game of each round, on the models that absent clients would have sent."""
    return RoundGames(
        _recorded(source, "every client's model of every round").true_game, range(len(source.participants))
    )


def _recorded(source: GameSource, needed: str = "the clients' models") -> RecordedFederation:
    if source.recorded is None:
        raise ValuationError(f"it needs {needed}, and only utilities are known; value a ledger")
    return source.recorded


def _whole_training(make: Callable[[RecordedFederation], Game]) -> Callable[[GameSource], RoundGames]:
    """One game for the whole training, made from the recorded models."""
    return lambda source: RoundGames(lambda _: make(_recorded(source)), [0], source.estimated)


def share_out(
    rule: SharingRule, games: Callable[[GameSource], RoundGames] = participants, *, on_sum: bool = False
) -> Callable[[GameSource], Valuation]:
    """The method that shares out each round's game by a rule, and adds up the rounds.

    Args:
        rule: Shares out one game.
        games: Whose game of each round is shared out.
        on_sum: Add up the rounds' games first and share out the sum once: for rules that are not linear.

    Returns:
        What `Method.value` takes.

    Example:
        method = fedworth.Method("mine", "what it means", fedworth.share_out(my_rule))
    """

    def value(source: GameSource) -> Valuation:
        rounds = games(source)
        if not on_sum:
            return add_up(source, rule, rounds)
        whole = SummedGame([rounds.game(t) for t in rounds.rounds])
        valuation = add_up(source, rule, RoundGames(lambda _: whole, [0], rounds.completion))
        return replace(valuation, by_round=None, n_evaluations=valuation.n_evaluations * len(rounds.rounds))

    return value


def add_up(source: GameSource, rule: SharingRule, games: RoundGames) -> Valuation:
    """Share out each game, and sum values, covariances and costs over the rounds."""
    valuation, errors = _sums(source, rule, games)
    if valuation.completion is None or games.completion is None:
        return _with_uncertainty(source, valuation, errors, ())
    if rule is not shapley:  # a completion knows the errors of Shapley values only
        return _with_uncertainty(source, valuation, replace(errors, estimates=None), ())
    return _with_uncertainty(source, valuation, errors, games.completion.caveats)


def _sums(source: GameSource, rule: SharingRule, games: RoundGames) -> tuple[Valuation, Errors]:
    """The valuation without its uncertainty, and the errors of its values."""
    n_rounds, n_clients = source.participants.shape
    heard, cell_weights = heard_clients(source), cell_weights_of(source)
    valued = np.setdiff1d(heard, source.given)
    if cell_weights is not None and rule in NONLINEAR:
        raise ValuationError(NO_WEIGHTS)
    by_round = np.zeros((n_rounds, n_clients))
    by_block: Floats | None = None  # (n_clients, n_blocks)
    sampling = np.zeros((n_clients, n_clients))
    n_evaluations = 0
    notes: dict[str, None] = {}  # each once, in order
    run = source.effort.start(len(games.rounds), n_clients)  # decides how much is measured for Shapley values
    share = sharing_as_one(run.by(rule), source.as_one)
    is_linear = rule not in NONLINEAR
    marginals = MarginalSums(source.clients, cell_weights) if rule is shapley and not source.as_one else None
    # other measures are not measured by group, so they cannot be reweighted
    is_plain = marginals is not None and cell_weights is None
    also = also_of(source.recorded.oracle) if is_plain and source.recorded is not None else ()
    by_measure: Floats | None = np.zeros((len(also), n_clients))
    for t in games.rounds:
        game = given_game(games.game(t), source.given)
        if len(game.clients) == 0:
            continue
        shares, weight = share(game, stream(source.settings.seed, "coalitions", t)), games.decay**t
        by_block = np.zeros((n_clients, shares.values.shape[1])) if by_block is None else by_block
        if cell_weights is not None:
            shares = _reweighted(shares, cell_weights)
        by_block[game.clients] += weight * shares.values
        by_round[t, game.clients] = weight * shares.totals
        sampling[np.ix_(game.clients, game.clients)] += weight**2 * shares.sampling_covariance
        n_evaluations += shares.n_evaluations
        notes.update(dict.fromkeys(shares.notes))
        if marginals is not None:
            number = t + 1 if source.recorded is None else source.recorded.numbers[t]
            is_exact = not shares.sampling_covariance.any()
            marginals.add(number, game, is_exact=is_exact)
            if not (is_exact and isinstance(game, GameOfColumns) and len(game.clients) <= MOST_ENUMERATED):
                by_measure = None  # other measures are known where every coalition was measured
            elif also and by_measure is not None:
                columns = game.columns(coalitions_of(np.arange(len(game.clients)), len(game.clients)))
                by_measure[:, game.clients] += weight * shapley_values(columns[:, game.n_blocks :].T)
    notes.update(dict.fromkeys(run.notes()))
    if games.sampling is not None:
        sampling[np.ix_(heard, heard)] = games.sampling
    silent = np.setdiff1d(np.arange(n_clients), valued)
    values = by_round.sum(axis=0)
    values[silent] = np.nan
    by_round[:, silent] = np.nan
    sampling[silent] = np.nan
    sampling[:, silent] = np.nan
    if by_block is not None:
        by_block[silent] = np.nan
    if by_measure is not None:
        by_measure[:, silent] = np.nan
    completion, errors = games.completion, Errors(np.zeros((n_clients, n_clients)), sampling)
    if completion is not None:
        covariance = completion.covariance()
        if covariance is not None and not covariance.any():
            completion = None  # nothing had to be estimated
        else:
            if len(source.given):
                covariance = None  # a completion knows the errors of values in the game of all clients
            elif covariance is not None and source.as_one:
                covariance = averaged(covariance, heard, source.as_one)
            ratios, whole = _error_ratios(source, completion)
            of_estimates = None if covariance is None else spread(whole**2 * covariance, heard, n_clients)
            errors = Errors(of_estimates, sampling, ratios)
    valuation = Valuation(
        method="",
        clients=source.clients,
        values=values,
        by_round=by_round,
        block_values=by_block if is_linear else None,
        marginals=None if marginals is None or source.is_vertical else marginals.of(values),  # no harm is looked for
        by_measure={} if by_measure is None else dict(zip(also, by_measure, strict=True)),
        completion=None if completion is None else completion.summary(),
        notes=tuple(notes),
        cautions=run.cautions(),
        n_evaluations=n_evaluations,
    )
    return valuation, errors


def cell_weights_of(source: GameSource) -> Floats | None:
    """(n_cells,): what each cell of test samples counts, if values are for a population with other shares of groups."""
    return None if isinstance(source.test_set, Undivided) else source.test_set.weights


def _reweighted(shares: Shares, cell_weights: Floats) -> Shares:
    """Shares for a population; the errors of drawn coalitions change in size as the shares do."""
    if shares.values.shape[1] != len(cell_weights):
        raise ValuationError(NO_WEIGHTS)
    weighted = replace(shares, values=shares.values * cell_weights)
    size = float((weighted.totals**2).sum()) / max(float((shares.totals**2).sum()), 1e-300)
    return replace(weighted, sampling_covariance=size * shares.sampling_covariance)


def _error_ratios(source: GameSource, completion: Completion) -> tuple[Floats | None, float]:
    """Errors of values by group, (n_groups,), over those of the values; None if unknown, or without groups.

    Then the errors of the values over those of values on the test set as it is, if they are for another population.
    """
    cells = source.test_set
    if isinstance(cells, Undivided) or not cells.groups:
        return None, 1.0
    weights = np.ones(len(cells.group_of)) if cells.weights is None else cells.weights
    groups = weights[:, None] * (cells.group_of[:, None] == np.arange(len(cells.groups)))
    found = completion.error_ratios(np.column_stack([groups, weights]))
    return (None, 1.0) if found is None else (found[:-1] / (found[-1] or 1.0), float(found[-1]))


def _with_uncertainty(
    source: GameSource,
    valuation: Valuation,
    errors: Errors,
    caveats: Sequence[Caveat],
    cells: Cells | Undivided | None = None,
) -> Valuation:
    """The valuation with its parts by group, and its uncertainty as far as that is known.

    Without the errors of estimates or of drawn coalitions there are no intervals. If only the test set's part is
    unknown, intervals hold on this test set only, and a caveat says so.
    """
    if valuation.block_values is None and valuation.n_evaluations == 0:
        return valuation  # there was no round to share out
    cells, of_test_set, unknown = cells or source.test_set, None, []
    if source.settings.interval == "new-data":
        found = _of_test_set(cells, valuation)
        of_test_set, unknown = (None, [found]) if isinstance(found, str) else (found, [])
    valuation = replace(valuation, groups=_groups(cells, valuation, errors, with_test_set=of_test_set is not None))
    missing = [UNKNOWN_ESTIMATES] if errors.estimates is None and (len(source.given) or not caveats) else []
    missing += [UNKNOWN_SAMPLING] if np.isnan(np.diag(errors.sampling)[~np.isnan(valuation.values)]).any() else []
    if errors.estimates is None or missing or (unknown and not np.nansum(errors.estimates + errors.sampling)):
        reasons = (UNKNOWN.format(reason=reason) for reason in (*missing, *unknown))
        return replace(valuation, notes=(*valuation.notes, *map(str, caveats), *reasons))
    known = uncertainty(
        valuation.values,
        errors.estimates,
        sampling=errors.sampling,
        test_set=of_test_set,
        degrees=np.inf if isinstance(cells, Undivided) else cells.n_blocks - 1,
        n_test_samples=None if isinstance(cells, Undivided) else cells.n_samples,
        caveats=(*caveats, *(Caveat((), ON_THIS_TEST_SET.format(reason=reason)) for reason in unknown)),
    )
    return replace(valuation, uncertainty=known)


def _of_test_set(cells: Cells | Undivided, valuation: Valuation) -> Floats | str:
    """(n_clients, n_clients): the test set's part of the covariance, or why it is not known."""
    if isinstance(cells, Undivided):
        return cells.reason
    if valuation.block_values is None:
        return NO_PARTS
    residuals = cells.residuals(valuation.block_values)
    largest = np.nanmax(np.abs(valuation.values), initial=0)
    if np.nanmax(np.abs(residuals), initial=0) <= EQUAL * largest:
        return ALL_ALIKE if largest else NOTHING_CHANGED
    return np.asarray(residuals @ residuals.T)


def _groups(
    cells: Cells | Undivided, valuation: Valuation, errors: Errors, *, with_test_set: bool
) -> GroupValues | None:
    """The values by group, if the test samples have groups; their errors are NaN if those of estimates are unknown."""
    if isinstance(cells, Undivided) or not cells.groups or valuation.block_values is None:
        return None
    estimates = np.full((len(valuation.values), len(cells.groups)), np.nan)
    if errors.estimates is not None and not np.nansum(errors.estimates):
        estimates[:] = 0.0
    elif errors.estimates is not None and errors.ratios is not None:
        estimates[:] = np.outer(np.diag(errors.estimates), errors.ratios**2)
    return group_values(valuation.block_values, cells, estimates, np.diag(errors.sampling), with_test_set=with_test_set)


def comfedsv(source: GameSource) -> Valuation:
    """The paper's ComFedSV: exact (eq. complete_sv), or by the permutations of Algorithm 1.

    Where models are recorded, the completion by models says how far off the factors may be:
    E (x − u)(x − u)ᵀ = (x − y)(x − y)ᵀ + Cov(y − u), with y the values by models.
    """
    completion = source.by_factors()
    permutations = completion.permutations
    rule: SharingRule = shapley
    games = _completed(source, completion)
    if permutations is not None and (source.as_one or len(source.given)):
        option = "--as-one" if source.as_one else "--given"
        raise ValuationError(f"{option} needs all coalitions of clients, at most {MOST_ENUMERATED}; use another method")
    if permutations is not None:
        rule = lambda game, _rng: permutation_shapley(game, permutations)  # noqa: E731
        whole = SummedGame([games.game(t) for t in games.rounds])  # all rounds have the same permutations
        games = replace(games, sampling=permutation_shapley(whole, permutations).sampling_covariance)
    valuation, errors = _sums(source, rule, games)
    valuation, caveats = replace(valuation, n_evaluations=completion.n_seen), completion.caveats
    if completion.n_unseen:  # only if they are to count as 0: otherwise the game has refused
        valuation = replace(
            valuation, notes=(*valuation.notes, f"{completion.n_unseen:,} coalitions were never seen and count as 0")
        )
    if source.recorded is not None:
        reference, of_reference = _sums_by_models(source)
        if of_reference.estimates is not None:
            apart = valuation.values - reference.values
            total = np.outer(apart, apart) + of_reference.estimates + of_reference.sampling
            errors, caveats = Errors(total, 0 * total), source.by_models().caveats
    cells = source.test_set  # the utility matrix is not divided into groups
    cells = cells if isinstance(cells, Undivided) else cells.without_groups()
    return _with_uncertainty(source, valuation, errors, caveats, cells)


def comfedsv_models(source: GameSource) -> Valuation:
    """ComFedSV by models: the Shapley value of everyone's game of each round, on recorded and predicted models."""
    valuation, errors = _sums_by_models(source)
    valuation = _with_uncertainty(source, valuation, errors, source.by_models().caveats)
    return replace(valuation, notes=(*valuation.notes, *other_orders(valuation, valuation.by_measure)))


def _sums_by_models(source: GameSource) -> tuple[Valuation, Errors]:
    """Values by models and their errors; made once, since the paper's method needs them too."""
    if "models" not in source.sums:
        source.sums["models"] = _sums(source, shapley, by_models(source))
    return source.sums["models"]


def _refitted_head(source: GameSource) -> Valuation:
    game = RefittedGame(_recorded(source), source.effort.progress)
    valuation = add_up(source, shapley, RoundGames(lambda _: game, [0], source.estimated))
    cautions = (game.caution,) if game.caution else ()
    return replace(valuation, by_round=None, cautions=cautions, notes=(*valuation.notes, *cautions))


def _gtg(source: GameSource) -> Valuation:
    games = participants(source)
    wholes = [float(everyone_of(games.game(t)).sum()) for t in games.rounds]
    skip_below = GTG_SKIPPED * float(np.mean(np.abs(wholes)))
    return add_up(source, lambda game, rng: gtg(game, rng, skip_below=skip_below), games)


def _measured(measure: Callable[[RecordedFederation], Floats]) -> Callable[[GameSource], Valuation]:
    """A measure of recorded updates, (n_clients,), that shares out no game."""

    def value(source: GameSource) -> Valuation:
        if cell_weights_of(source) is not None:
            raise ValuationError(NO_WEIGHTS)
        if len(source.given):
            raise ValuationError("it shares out no game, so it cannot tell what clients add for others (--given)")
        found = np.where(source.participants.any(axis=0), measure(_recorded(source)), np.nan)
        return Valuation(method="", clients=source.clients, values=found, notes=(NO_GAME,))

    return value


METHODS: dict[str, Method] = {
    "comfedsv-models": Method(
        "ComFedSV by models",
        "potential: what the client would have added, had it always taken part; absent clients' models are predicted",
        comfedsv_models,
        Basis.POTENTIAL,
        adds_up=True,
    ),
    "comfedsv": Method(
        "ComFedSV",
        "potential, the paper's: Shapley value of the utility matrix completed by factors",
        comfedsv,
        Basis.POTENTIAL,
        adds_up=True,
    ),
    "fedsv": Method(
        "FedSV",
        "earned: what the client added in the rounds it took part in",
        share_out(shapley),
        Basis.EARNED,
        adds_up=True,
    ),
    "fedsv-equal": Method(
        "FedSV at equal length",
        "earned, if every update had the median length of its round; a longer update gains nothing",
        share_out(shapley, equal_length),
        Basis.EARNED,
    ),
    "fedsv-later": Method(
        "FedSV, later rounds",
        "earned, without the rounds in which all clients took part",
        share_out(shapley, later_rounds),
        Basis.EARNED,
    ),
    "verfedsv": Method(
        "VerFedSV",
        "vertical: what the changes of the client's embeddings added, while the others' were the old or the new ones",
        share_out(shapley),
        Basis.EARNED,
        adds_up=True,
    ),
    REFITTED: Method(
        "Refitted head",
        "vertical: what the client's embeddings tell about the labels, shared with those that tell the same, by a head "
        "fitted anew for each coalition",
        _refitted_head,
    ),
    "truth": Method(
        "Truth",
        "truth: what the client would have added, measured with every client's model of every round",
        share_out(shapley, truth),
        Basis.POTENTIAL,
        adds_up=True,
        needs_truth=True,
    ),
    "all-clients-round": Method(
        "All-clients round",
        "baseline: the one round in which all clients took part",
        share_out(shapley, all_clients_round),
        Basis.ONE_ROUND,
    ),
    "leave-one-out": Method(
        "Leave-one-out",
        "baseline: what the participants lose without the client, summed over its rounds",
        share_out(leave_one_out),
        Basis.EARNED,
    ),
    "large-coalitions": Method(
        "Large coalitions",
        "potential: what the client adds to coalitions of at least half of the others; small coalitions, which nobody "
        "would use, do not count, and the values do not add up to the total gain",
        share_out(to_large, by_models_or_factors),
    ),
    "banzhaf": Method(
        "Banzhaf",
        "potential, all coalitions of the others weighted equally; the values do not add up to the total gain",
        share_out(banzhaf, by_models_or_factors),
    ),
    "beta-shapley": Method(
        "Beta-Shapley",
        "potential, small coalitions weighted most (Beta(16, 1)); the values do not add up to the total gain",
        share_out(beta_shapley, by_models_or_factors),
    ),
    "least-core": Method(
        "Least core",
        "potential: minimises the largest complaint of any coalition",
        share_out(least_core, by_models_or_factors, on_sum=True),
    ),
    "tmc": Method(
        "TMC",
        "earned, by truncated permutations (TMC); its intervals do not cover the error of truncation",
        share_out(tmc),
    ),
    "gtg": Method(
        "GTG",
        "earned, by guided truncated permutations, without rounds of little change (GTG-Shapley); its intervals do not "
        "cover the error of truncation",
        _gtg,
    ),
    "mr": Method(
        "MR",
        "earned, later rounds weighted less (MR)",
        share_out(shapley, lambda source: replace(participants(source), decay=MR_DECAY)),
    ),
    "or": Method(
        "OR",
        "earned over the whole training, from models rebuilt from the updates (OR)",
        share_out(shapley, _whole_training(others.rebuilt), on_sum=True),
    ),
    "influence": Method(
        "Influence",
        "earned, to first order: how well the client's updates reduce the test loss",
        _measured(others.influence),
    ),
    "cosine": Method(
        "Cosine",
        "reputation: how well the client's updates agree with the average (CGSV); no test set",
        _measured(others.cosine),
    ),
    "retraining": Method(
        "Retraining",
        "truth of another kind: the federation trained again for every coalition (simulations)",
        share_out(shapley, _whole_training(others.retrained), on_sum=True),
        is_slow=True,
    ),
}


OF_MODELS = {
    # compare, predict or rebuild models, or train them again
    *("comfedsv-models", "comfedsv", "fedsv-equal", "truth", "or", "influence", "cosine", "retraining"),
    # differ by who is absent from a round: from a vertical federation nobody is
    *("fedsv", "fedsv-later", "all-clients-round"),
}
"""Methods that are not for vertical federations."""

OF_EMBEDDINGS = {VERFEDSV, REFITTED}
"""Methods for vertical federations only."""


def headline(*, is_vertical: bool) -> str:
    """The method to act on, if none is asked for."""
    return REFITTED if is_vertical else HEADLINE


@cache
def methods() -> dict[str, Method]:
    """All methods by name: fedworth's own, and those that other packages offer."""
    offered = {}
    for entry in entry_points(group="fedworth.methods"):
        method = entry.load()
        if not isinstance(method, Method):
            raise UsageError(
                f"entry point {entry.name!r} of fedworth.methods: a {type(method).__name__}, expected a Method"
            )
        offered[entry.name] = method
    return {**offered, **METHODS}


def method_named(name: str) -> Method:
    """The method of this name, or an error with the nearest name."""
    if name not in methods():
        raise unknown_name("method", name, methods())
    return methods()[name]


def method_text(name: str) -> Method:
    """The method of this name, for its label and description; one that is not installed here has its name only."""
    return methods().get(name) or Method(name, name, share_out(shapley))


def unfit(name: str, *, is_vertical: bool) -> str:
    """Why a method cannot value a federation of this kind; empty if it can."""
    if is_vertical and name in OF_MODELS:
        return f"{name} is for models that are averaged, and this federation is vertical; use {REFITTED} or {VERFEDSV}"
    if name in OF_EMBEDDINGS and not is_vertical:
        return f"{name} is for vertical federations, and here clients send models; use comfedsv-models"
    return ""


def value_by(source: GameSource, name: str) -> Valuation:
    """What each client is worth by the method of this name."""
    method = method_named(name)
    if why := unfit(name, is_vertical=source.is_vertical):
        raise ValuationError(why)
    silent = never_heard(source)
    valuation = method.value(source)
    valuation = replace(valuation, method=name, notes=(*source.notes, *silent, *valuation.notes))
    if not source.is_vertical:
        return valuation
    cautions = cautions_of(valuation, source.settings.without, source.settings.given)
    notes, cautions = (*valuation.notes, *cautions), (*valuation.cautions, *cautions)
    return replace(valuation, notes=notes, cautions=cautions)


def round_gains(source: GameSource) -> Floats | None:
    """(n_rounds,): what each round's participants gained together; None if one was not measured."""
    try:
        games = [source.game(t) if row.any() else None for t, row in enumerate(source.participants)]
        return np.array([0.0 if game is None else float(everyone_of(game).sum()) for game in games])
    except ValuationError:
        return None


def heard_clients(source: GameSource) -> Indices:
    """The clients that took part in some round."""
    return np.flatnonzero(source.participants.any(axis=0))


def never_heard(source: GameSource) -> tuple[str, ...]:
    """A note that names the clients that never took part; an error under `strict`, or if nobody took part."""
    heard = heard_clients(source)
    if len(heard) == 0:
        raise ValuationError("no client took part in any round, so nobody can be valued")
    silent = np.setdiff1d(np.arange(len(source.clients)), heard)
    missing = [source.clients[k] for k in silent if source.clients[k] not in source.left_out]
    if not missing:
        return ()
    n_rounds = len(source.participants)
    who = f"{', '.join(map(repr, missing))} took part in none of {n_rounds} rounds"
    found = f"client{'s' if len(missing) > 1 else ''} {who}"
    if source.settings.strict:
        raise NeverHeardError(f"{found}; let a round ask everyone, or leave out --strict to value the others")
    missed = "they have no value, and the others are valued without them"
    if len(missing) == 1:
        missed = "it has no value, and the others are valued without it"
    return (f"{found}; {missed}",)


def spread(square: Floats, heard: Indices, n_clients: int) -> Floats:
    """(n_clients, n_clients): a matrix of the clients that took part as one of all clients, NaN for the rest."""
    everyone = np.full((n_clients, n_clients), np.nan)
    everyone[np.ix_(heard, heard)] = square
    return everyone


def _has_everyone(source: GameSource) -> NDArray[np.bool_]:
    """(n_rounds,): whether all clients took part, apart from those that never did."""
    heard = source.participants.any(axis=0)
    return np.asarray((source.participants | ~heard).all(axis=1))
