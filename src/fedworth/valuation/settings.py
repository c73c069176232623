"""How a federation is valued, and where the work is done."""

from dataclasses import dataclass, field

from fedworth.completion.settings import FactorSettings
from fedworth.errors import UsageError
from fedworth.names import EngineName, Measure, OracleName, Unseen, Weighting, checked_name


@dataclass(frozen=True)
class ValuationSettings:
    """How a ledger is valued: everything but the ledger and the task that decides the numbers.

    Args:
        weighting: How a coalition's models are averaged (default: uniform if simulated, else as the server averaged).
        measure: `loss`, or a measure of the task such as `accuracy`.
        test_samples: Judge on so many test samples, every class in proportion (default: all).
        oracle: `fast`, or `loop`: plain and slow.
        as_average: Take the server for one that averages, although its recorded models say otherwise; reports say so.
        permutations: Complete the paper's utility matrix on the prefixes of so many permutations (default: all
            coalitions of up to 12 clients, N⌈ln N⌉ permutations of more).
        factors: Rank and penalty of the paper's completion.
        auto_rank: Choose rank and penalty by cross-validation.
        unseen: Coalitions that no round has shown: `refuse`, or count as `zero`.
        strict: Stop at the first method that must be refused, and if a client was never heard.
        without: Value the federation as if this client had never answered.
        seed: Random seed.

    Example:
        settings = fedworth.ValuationSettings(measure="accuracy", without=("north",))
    """

    weighting: Weighting | None = None
    measure: Measure = "loss"
    test_samples: int | None = None
    oracle: OracleName = "fast"
    as_average: bool = False
    permutations: int | None = None
    factors: FactorSettings = field(default_factory=FactorSettings)
    auto_rank: bool = False
    unseen: Unseen = "refuse"
    strict: bool = False
    without: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.weighting is not None:
            checked_name("weighting", self.weighting)
        checked_name("oracle", self.oracle)
        checked_name("treatment of unseen coalitions", self.unseen)
        if self.test_samples is not None and self.test_samples < 1:
            raise UsageError(f"{self.test_samples} test samples: expected 1 or more")


@dataclass(frozen=True)
class WorkSettings:
    """Where and by what coalitions are measured; nothing here changes a value.

    Args:
        device: Where models are evaluated: `cpu`, `cuda`, `cuda:1` …
        n_threads: Threads of the fast oracle (default: one a processor).
        engine: `local`, or `ray`: the workers of a Ray cluster.
        address: The address of a Ray cluster (default: one on this machine).
        cache: Do not keep measured utilities beside the ledger.

    Example:
        work = fedworth.WorkSettings(n_threads=1, cache=False)
    """

    device: str = "cpu"
    n_threads: int | None = None
    engine: EngineName = "local"
    address: str | None = None
    cache: bool = True

    def __post_init__(self) -> None:
        checked_name("engine", self.engine)
        if self.address is not None and self.engine != "ray":
            raise UsageError(f"--address {self.address}: is for --engine ray; the local engine has none")
