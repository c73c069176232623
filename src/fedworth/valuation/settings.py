"""How a federation is valued, and where the work is done."""

from dataclasses import dataclass, field

from fedworth.completion.settings import FactorSettings
from fedworth.errors import UsageError
from fedworth.games.budget import Budget
from fedworth.names import (
    Clip,
    EngineName,
    GroupShares,
    Interval,
    Measure,
    OracleName,
    Unseen,
    UnsentEmbeddings,
    Weighting,
    checked_name,
)


@dataclass(frozen=True)
class ValuationSettings:
    """How a ledger is valued: everything but the ledger and the task that decides the numbers.

    Args:
        weighting: How a coalition's models are averaged: equally, weighted by samples, or with the fixed weights of the
            whole round (default: as the server averaged).
        measure: What a model's utility is: `loss`, or a measure of the task such as `accuracy`.
        test_samples: Evaluate on this many test samples, each class in proportion (default: all).
        interval: What intervals are for: the value on new data like the test set (`new-data`), or on exactly these test
            samples (`test-set`).
        by: Give values by this grouping of the test samples too: `class`, or a name in the task's groups (default: the
            first of the task's groupings, else the class).
        group_shares: Give values for a population in which the groups have known shares: a CSV file with a group and
            its share in each line, or `equal` (default: the shares in the test set).
        budget: How precise values must be, and how much may be measured for them.
        oracle: Measure coalitions by the `fast` oracle, or by the plain and slow `loop`.
        as_average: Value the ledger as if the server had averaged, even if its models show that it did not; reports say
            so.
        permutations: Fill the paper's utility matrix with the prefixes of this many random permutations (default: all
            coalitions of up to 12 clients, N⌈ln N⌉ permutations for more).
        factors: Rank and penalty of the paper's completion.
        auto_rank: Choose rank and penalty by cross-validation.
        unseen: What the paper's completion does with a coalition that was never seen: `refuse` to value, or count it as
            `zero`.
        strict: Fail if a method cannot be applied or a client never took part, instead of noting it.
        clip: Rescale every update to the `median` length of its round first, so that nobody gains by sending a longer
            one (default: as sent).
        without: Value the federation as if this client had never answered.
        as_one: Value these clients, with commas between their names, as one client that shares its value equally among
            them: for a client under several names.
        given: Put this client into every coalition, and value what the others add: for a member that asks what its
            partners are worth to it. It has no value itself.
        unsent: How the embeddings of samples outside of a batch are estimated, where clients of a vertical federation
            send those of a batch only.
        seed: Random seed.

    Example:
        settings = fedworth.ValuationSettings(measure="accuracy", without=("north",))
    """

    weighting: Weighting | None = None
    measure: Measure = "loss"
    test_samples: int | None = None
    interval: Interval = "new-data"
    by: str | None = None
    group_shares: GroupShares | None = None
    budget: Budget = field(default_factory=Budget)
    oracle: OracleName = "fast"
    as_average: bool = False
    permutations: int | None = None
    factors: FactorSettings = field(default_factory=FactorSettings)
    auto_rank: bool = False
    unseen: Unseen = "refuse"
    strict: bool = False
    clip: Clip | None = None
    without: tuple[str, ...] = ()
    as_one: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    unsent: UnsentEmbeddings = "smooth"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.weighting is not None:
            checked_name("weighting", Weighting, self.weighting)
        if self.clip is not None:
            checked_name("clip", Clip, self.clip)
        checked_name("estimate of embeddings", UnsentEmbeddings, self.unsent)
        checked_name("interval", Interval, self.interval)
        checked_name("oracle", OracleName, self.oracle)
        checked_name("treatment of unseen coalitions", Unseen, self.unseen)
        if self.test_samples is not None and self.test_samples < 1:
            raise UsageError(f"{self.test_samples} test samples: expected 1 or more")


@dataclass(frozen=True)
class WorkSettings:
    """Where coalitions are measured; no setting changes a value.

    Args:
        device: Where models are evaluated: `cpu`, `cuda`, `cuda:1` …
        n_threads: Threads of the fast oracle (default: one for each processor).
        engine: Measure in this process (`local`) or on the workers of a Ray cluster (`ray`).
        address: Address of the Ray cluster (default: start one on this machine).
        cache: Use and keep measured utilities in your cache folder ($FEDWORTH_CACHE).

    Example:
        work = fedworth.WorkSettings(n_threads=1, cache=False)
    """

    device: str = "cpu"
    n_threads: int | None = None
    engine: EngineName = "local"
    address: str | None = None
    cache: bool = True

    def __post_init__(self) -> None:
        checked_name("engine", EngineName, self.engine)
        if self.address is not None and self.engine != "ray":
            raise UsageError(f"--address {self.address}: is for --engine ray; the local engine has none")
