"""The stages between a ledger and a report: how it is measured, completed and valued.

In: a ledger, an oracle, settings. Out: utilities; completions; valuations, and why a method gave none. `observe`,
`complete` and `value` give the same numbers for the same ledger and options, to the bit.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedworth.arrays import Floats, stream
from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import Completion, FactorCompletion
from fedworth.completion.crossvalidation import choose_factors
from fedworth.completion.factor_errors import with_errors
from fedworth.completion.kernels.layout import Factors
from fedworth.errors import CompletionError, ValuationError
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.observe import observe
from fedworth.games.planning.choose import PlanSettings, choose_plan
from fedworth.games.round_values import RoundValues
from fedworth.ledger.ledger import Ledger
from fedworth.names import (
    DEFAULT_COMPLETION,
    CompletionKind,
    Measure,
    MethodName,
    OracleName,
    Unseen,
    Weighting,
    checked_name,
)
from fedworth.oracle.cache import utility_cache
from fedworth.oracle.oracle import TaskOracle
from fedworth.oracle.weighting import participation
from fedworth.report.report import Rounds
from fedworth.storage import Progress, silent
from fedworth.valuation.by_round import comfedsv_by_round, fedsv_by_round, gains
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.value import value

Refusals = tuple[tuple[str, str], ...]
"""(method, why it gave no values)."""


@dataclass(frozen=True)
class ValuingSettings:
    """How a ledger is valued: everything but the ledger and the task that decides the numbers.

    Args:
        weighting: How a coalition's models are averaged; as fits the federation if it is not given.
        measure: `loss`, or a measure of the task such as `accuracy`.
        oracle: `fast`, or `loop`: plain and slow.
        as_average: Take the server for one that averages, although its models say otherwise.
        plan: Which coalitions are measured.
        completion: What ComFedSV rests on: `models` or `factors`.
        factors: Rank and penalty of the factors.
        auto_rank: Choose both by cross-validation.
        unseen: Coalitions that no round has shown: `refuse`, or count as `zero`.
        strict: Refuse if a client was never heard.
        without: Value the federation as if these clients had never answered.
        seed: Of whatever is drawn.

    Example:
        settings = fedworth.ValuingSettings(measure="accuracy", without=("north",))
    """

    weighting: Weighting | None = None  # None: as fits the federation
    measure: Measure = "loss"
    oracle: OracleName = "fast"
    as_average: bool = False  # whether a server that does not average is taken for one that does
    plan: PlanSettings = field(default_factory=PlanSettings)
    completion: CompletionKind = DEFAULT_COMPLETION  # what ComFedSV rests on; factors stand beside it
    factors: FactorSettings = field(default_factory=FactorSettings)
    auto_rank: bool = False  # whether cross-validation chooses the factors' rank and penalty
    unseen: Unseen = "refuse"
    strict: bool = False
    without: tuple[str, ...] = ()  # clients whose models count for nothing
    seed: int = 0  # of whatever is drawn: permutations, cells to hide in cross-validation

    def __post_init__(self) -> None:
        if self.weighting is not None:
            checked_name("weighting", self.weighting)
        checked_name("oracle", self.oracle)
        checked_name("completion", self.completion)
        checked_name("treatment of unseen coalitions", self.unseen)

    def document(self) -> dict[str, Any]:
        """The settings as JSON."""
        return asdict(self)


def measure(
    ledger: Ledger,
    oracle: TaskOracle,
    settings: ValuingSettings,
    *,
    with_truth: bool = False,
    n_checked: int = 0,
    earlier: RoundValues | None = None,
    progress: Progress = silent,
) -> UtilityMatrix:
    """The utilities that the settings ask for; what was measured before is known. See `observe` for `n_checked`."""
    ledger = ledger.without(settings.without)
    plan = choose_plan(participation(ledger), settings.plan, with_truth=with_truth, seed=settings.seed)
    return observe(
        ledger,
        oracle,
        plan,
        weighting=settings.weighting,
        cache=utility_cache(ledger, oracle),
        n_checked=n_checked,
        as_average=settings.as_average,
        earlier=earlier,
        progress=progress,
    )


def factors_of(
    utilities: UtilityMatrix, settings: ValuingSettings, *, start: Factors | None = None
) -> FactorCompletion:
    """The paper's completion, with others that fit about as well, so that it knows how sure it is."""
    factors = settings.factors
    if settings.auto_rank:
        rng = stream(settings.seed, "cross-validation")
        factors = choose_factors(utilities, penalty_kind=factors.penalty_kind, rng=rng).settings
    return with_errors(utilities, complete(utilities, factors, start=start))


REPORTED = {"comfedsv": "comfedsv-models", "comfedsv-factors": "comfedsv", "heard-round": "all-clients-round"}
"""Names of methods in reports, by their names in `value`; `comfedsv` of a completion by factors keeps its name."""


def reported(valuation: Valuation) -> Valuation:
    """The valuation under its name in reports."""
    if valuation.method == "comfedsv" and (valuation.completion or {}).get("kind") != "models":
        return valuation
    return replace(valuation, method=REPORTED.get(valuation.method, valuation.method))


def rounds_of(matrix: UtilityMatrix, numbers: tuple[int, ...] | None = None) -> Rounds:
    """The rounds of a report on these utilities."""
    return Rounds(numbers or tuple(range(1, matrix.n_rounds + 1)), matrix.participants, gains(matrix))


def _by_round(valuation: Valuation, matrix: UtilityMatrix, completion: Completion | None) -> Floats | None:
    """(n_rounds, n_clients): what each round added to the values, where that is known."""
    if completion is not None:
        return comfedsv_by_round(matrix, completion)
    return fedsv_by_round(matrix) if valuation.method == "fedsv" else None


def value_by(
    methods: Iterable[MethodName],
    utilities: UtilityMatrix,
    completed: Mapping[MethodName, Callable[[], Completion]],
    settings: ValuingSettings,
    *,
    truth: UtilityMatrix | None = None,
) -> tuple[tuple[Valuation, ...], Refusals]:
    """Every method's valuation, and which methods are refused, with the reason; `strict`: a refusal is an error.

    `completed` makes the completion of each method that rests on one.
    """
    made: list[Valuation] = []
    refusals: list[tuple[str, str]] = []
    for method in methods:
        matrix = truth if method == "truth" and truth is not None else utilities
        try:
            completion = completed[method]() if method in completed else None
            one = value(matrix, method, completion=completion, unseen=settings.unseen, strict=settings.strict)
            made.append(reported(replace(one, by_round=_by_round(one, matrix, completion))))
        except (CompletionError, ValuationError) as error:
            if settings.strict:
                raise
            name = (
                method if method == "comfedsv" and "comfedsv-factors" not in completed else REPORTED.get(method, method)
            )
            refusals.append((name, str(error)))
    return tuple(made), tuple(refusals)
