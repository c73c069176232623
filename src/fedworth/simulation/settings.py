"""The settings of a simulated federation: everything that decides its bytes, in one checked object."""

from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

from fedworth.errors import UsageError, unknown_name
from fedworth.names import Aggregation, DatasetName, Dtype, ModelName, PartitionName, ScheduleName, checked_name
from fedworth.simulation.bounds import MOST_CLIENTS, MOST_ROUNDS, fits
from fedworth.simulation.local import LocalTraining
from fedworth.simulation.schedule import Schedule

LATER = {"copies_shuffled"}


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """A federation to simulate; the defaults are the demonstration's, without its copy and its seed.

    Args:
        dataset: `digits`, `mnist`, `fashion-mnist`, `cifar10`, `synthetic` or `synthetic-iid`.
        alpha: α of synthetic data.
        beta: β of synthetic data.
        train_limit: At most so many training samples in all.
        test_limit: At most so many test samples.
        partition: `two-class`, `iid`, or `natural` (synthetic data's own).
        n_clients: How many clients.
        copies: Pairs (i, j): client i has the data of client j.
        copies_shuffled: A copy has its samples in another order.
        noise_shares: The share of noisy samples of each client.
        noise_strength: Noise in standard deviations of the features.
        flip_shares: The share of wrong labels of each client.
        model: `logistic`, `mlp`, `cnn`, `vgg16` or `vgg16-bn`.
        hidden: Widths of hidden layers.
        width_divisor: Divides the widths of vgg16.
        dtype: `float32` or `float64`.
        n_rounds: How many rounds.
        n_participants: How many clients are asked in a round.
        everyone_heard: All are asked in the first round.
        n_steps: Local steps a round.
        n_epochs: Local epochs a round, instead of steps.
        batch_size: Samples a step; all if it is not given.
        schedule: How the learning rate falls: `constant`, `decay`, `proposition-2`, `proposition-2-li`.
        rate: The learning rate.
        decay: With `decay`: rate / (1 + decay · round).
        convexity: μ of the proposition's schedules.
        smoothness: L₂ of the proposition's schedules.
        aggregation: `uniform`, or by `samples`.
        with_truth: Train the absent clients too, apart, so that the truth is known.
        seed: Of everything drawn.

    Example:
        settings = fedworth.SimulationSettings(dataset="digits", n_clients=6, copies=((5, 0),), n_rounds=5)
    """

    dataset: DatasetName = "digits"
    alpha: float = 1.0
    beta: float = 1.0
    train_limit: int | None = None
    test_limit: int | None = None
    partition: PartitionName = "two-class"
    n_clients: int = 10
    copies: tuple[tuple[int, int], ...] = ()
    copies_shuffled: bool = False  # a copy has its source's samples in another order, so it draws other batches
    noise_shares: tuple[float, ...] = ()
    noise_strength: float = 1.0
    flip_shares: tuple[float, ...] = ()
    model: ModelName = "logistic"
    hidden: tuple[int, ...] = ()
    width_divisor: int = 1
    dtype: Dtype = "float32"
    n_rounds: int = 10
    n_participants: int = 3
    everyone_heard: bool = True
    n_steps: int | None = 5
    n_epochs: int | None = None
    batch_size: int | None = None
    schedule: ScheduleName = "constant"
    rate: float = 0.5
    decay: float = 0.0
    convexity: float = 0.0
    smoothness: float = 0.0
    aggregation: Aggregation = "uniform"
    with_truth: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        checked_name("partition", self.partition)
        checked_name("aggregation", self.aggregation)
        checked_name("model", self.model)
        checked_name("dtype", self.dtype)
        if not 1 <= self.n_participants <= self.n_clients:
            found = f"{self.n_participants} participants of {self.n_clients} clients"
            raise UsageError(f"{found}: expected at least 1 and at most all")
        if self.n_clients > MOST_CLIENTS:
            raise UsageError(f"{self.n_clients} clients: expected {MOST_CLIENTS:,} at most")
        if not 1 <= self.n_rounds <= MOST_ROUNDS:
            raise UsageError(f"{self.n_rounds} rounds: expected 1 or more, and {MOST_ROUNDS:,} at most")
        if self.seed < 0:
            raise UsageError(f"seed {self.seed}: expected 0 or more")
        self._check_copies()
        for name, shares in (("noise", self.noise_shares), ("flip", self.flip_shares)):
            if len(shares) not in (0, self.n_clients) or not all(0 <= share <= 1 for share in shares):
                raise UsageError(f"{name} shares {shares}: expected {self.n_clients} numbers from 0 to 1, or none")
            for copy, source in self.copies if shares else ():
                if shares[copy] != shares[source]:
                    found = f"{name} shares {shares[copy]} and {shares[source]}"
                    raise UsageError(f"client {copy} is a copy of {source}, but they have {found}; expected equal ones")
        self.learning_rate()
        self.local_training()

    def _check_copies(self) -> None:
        if len(dict(self.copies)) != len(self.copies):
            raise UsageError(f"copies {self.copies}: expected one source a copy")
        sources = {source for _, source in self.copies}
        for copy, source in self.copies:
            if not (0 <= copy < self.n_clients and 0 <= source < self.n_clients) or copy in sources:
                raise UsageError(
                    f"client {copy} as a copy of {source}: expected two of {self.n_clients} clients, "
                    "and a source that is itself no copy"
                )

    def learning_rate(self) -> Schedule:
        """The learning rate of every round."""
        return Schedule(self.schedule, self.rate, self.decay, self.convexity, self.smoothness)

    def local_training(self) -> LocalTraining:
        """How much each client trains in a round."""
        return LocalTraining(self.n_steps, self.n_epochs, self.batch_size)

    def document(self) -> dict[str, Any]:
        """The settings as JSON; what was added later stands there only if it is used, so that older names stay."""
        document = asdict(self)
        return {name: document[name] for name in document if name not in LATER or document[name]}


def settings_from(document: dict[str, Any]) -> SimulationSettings:
    """The settings that `document()` gave, or an error that names the odd field."""
    known = {field.name for field in fields(SimulationSettings)}
    for name in document:
        if name not in known:
            raise unknown_name("setting", name, known)
    given: dict[str, Any] = {key: _frozen(value) for key, value in document.items()}
    hints = get_type_hints(SimulationSettings)
    for name, value in given.items():
        if not fits(value, hints[name]):
            raise UsageError(f"setting {name!r} is {str(value)[:40]!r}, expected {hints[name]}")
    return SimulationSettings(**given)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
