"""The settings of a simulated federation: everything that decides its bytes. They are checked without loading torch."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from fedworth.errors import UsageError, unknown_name
from fedworth.names import (
    Aggregation,
    Combine,
    DatasetName,
    Dtype,
    ModelName,
    OptimizerName,
    PartitionName,
    ScheduleName,
    checked_name,
)

# Larger numbers are typing errors, or were put into a ledger's header to make its reader hang.
MOST_CLIENTS = 100_000
MOST_ROUNDS = 1_000_000
MOST_STEPS = 1_000_000  # local steps or epochs of one client in one round
MOST_LAYERS, MOST_WIDTH = 100, 100_000

LATER = {
    "copies_shuffled", "copies_halved", "noise_from", "drift", "availability", "optimizer", "momentum", "proximal",
    "training_seed", "width", "combine", "with_validation",
}  # fmt: skip
"""Settings added later: they are written only if they are not the default, so that older ledgers' bytes stay."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning rate for every round: a constant, rate / (1 + decay·t), or Proposition 2's schedule.

    Proposition 2: η^t = 2 / (μ (γ + t)), with t = 1 in the first round. As printed γ = max{8μ/L₂, 1}; Li et al. (2019),
    whose theorem the proof uses, have γ = max{8L₂/μ, 1} (`proposition-2-li`).
    """

    name: ScheduleName = "constant"
    rate: float = 0.1
    decay: float = 0.0
    convexity: float = 0.0  # μ
    smoothness: float = 0.0  # L₂

    def __post_init__(self) -> None:
        checked_name("learning-rate schedule", ScheduleName, self.name)
        is_proposition = self.name.startswith("proposition-2")
        if is_proposition and not (self.convexity > 0 and self.smoothness > 0):
            found = f"μ = {self.convexity}, L₂ = {self.smoothness}"
            raise UsageError(f"schedule {self.name!r} needs μ > 0 and L₂ > 0, found {found}")
        if not is_proposition and not (self.rate > 0 and self.decay >= 0):
            found = f"rate {self.rate}, decay {self.decay}"
            raise UsageError(f"schedule {self.name!r} needs a rate > 0 and a decay ≥ 0, found {found}")
        if not all(map(math.isfinite, (self.rate, self.decay, self.convexity, self.smoothness))):
            found = f"rate {self.rate}, decay {self.decay}, μ {self.convexity}, L₂ {self.smoothness}"
            raise UsageError(f"schedule {self.name!r} needs finite numbers, found {found}")

    def at(self, round_index: int) -> float:
        """The learning rate of one round (0 is the first)."""
        match self.name:
            case "constant":
                return self.rate
            case "decay":
                return self.rate / (1 + self.decay * round_index)
        return 2 / (self.convexity * (self.gamma + round_index + 1))

    @property
    def gamma(self) -> float:
        """γ of Proposition 2, as printed or as Li et al. have it."""
        ratio = self.convexity / self.smoothness
        return max(8 * ratio if self.name == "proposition-2" else 8 / ratio, 1.0)


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """A federation to simulate; the defaults are the demonstration's, without its copy and its seed.

    Args:
        dataset: Data set to train on.
        alpha: Concentration of the partitions dirichlet and quantity: the smaller, the more unequal. Also α of
            synthetic data.
        beta: How much the clients' inputs differ, in the partition feature and in synthetic and regression data.
        train_limit: Use at most this many training samples in all.
        test_limit: Use at most this many test samples.
        partition: How clients get their data: at random (iid), two classes each, as the data set comes (natural),
            in unequal shares of each class (dirichlet), in unequal amounts (quantity), or as images that are
            rotated and brightened differently (feature); or different features of the same samples: columns of a table,
            strips of an image (vertical).
        n_clients: Number of clients.
        copies: Give client i the data of client j.
        copies_shuffled: Shuffle the samples of each copy, so that it draws other batches than its source.
        copies_halved: Give each copy one half of its source's samples, and leave the source the other half: one client
            under two names.
        noise_shares: Share of noisy samples of each client, or `step:S` for S·i of client i.
        noise_strength: Standard deviation of the noise, in standard deviations of the features.
        flip_shares: Share of wrong labels of each client, or `step:S` for S·i of client i.
        noise_from: First round with noisy samples and wrong labels; clients are clean before.
        drift: Share of each client's samples that is replaced by the next client's until the last round.
        model: Model to train; on regression data, logistic is linear regression.
        hidden: Widths of the hidden layers of an mlp.
        width_divisor: Divide the widths of vgg16 by this.
        width: How many numbers a client of a vertical federation sends of a sample.
        combine: How the server of a vertical federation combines the clients' embeddings of a sample.
        with_validation: Let clients of a vertical federation send embeddings of all test samples in every round.
        dtype: Type of the model's parameters.
        n_rounds: Number of rounds; a vertical federation has one more, for the embeddings before training.
        n_participants: Number of clients that take part in a round.
        everyone_heard: Ask all clients in the first round.
        availability: How often each client is picked, relative to the others (default: equally often).
        n_steps: Local gradient steps in a round.
        n_epochs: Local epochs in a round, instead of steps.
        batch_size: Samples in a gradient step (default: all).
        optimizer: Optimizer of the local steps; its state is reset in every round.
        momentum: Momentum of local steps.
        proximal: μ of FedProx, which keeps local models near the global model.
        schedule: How the learning rate changes over the rounds.
        rate: Learning rate.
        decay: Decay of the schedule `decay`: rate / (1 + decay · round).
        convexity: μ of the schedules of Proposition 2.
        smoothness: L₂ of the schedules of Proposition 2.
        aggregation: Average models equally, or weighted by samples.
        with_truth: Train the absent clients too, separately, so that the truth is known.
        seed: Random seed of the data, the partition, the model and the participants.
        training_seed: Another seed for batches and participants only (default: the same).

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
    copies_shuffled: bool = False
    copies_halved: bool = False
    noise_shares: tuple[float, ...] = ()
    noise_strength: float = 1.0
    flip_shares: tuple[float, ...] = ()
    noise_from: int = 0
    drift: float = 0.0
    model: ModelName = "logistic"
    hidden: tuple[int, ...] = ()
    width_divisor: int = 1
    width: int = 4
    combine: Combine = "concatenation"
    with_validation: bool = True
    dtype: Dtype = "float32"
    n_rounds: int = 10
    n_participants: int = 3
    everyone_heard: bool = True
    availability: tuple[float, ...] = ()
    n_steps: int | None = 5
    n_epochs: int | None = None
    batch_size: int | None = None
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0
    proximal: float = 0.0
    schedule: ScheduleName = "constant"
    rate: float = 0.5
    decay: float = 0.0
    convexity: float = 0.0
    smoothness: float = 0.0
    aggregation: Aggregation = "uniform"
    with_truth: bool = True
    seed: int = 0
    training_seed: int | None = None

    def __post_init__(self) -> None:
        checked_name("partition", PartitionName, self.partition)
        checked_name("aggregation", Aggregation, self.aggregation)
        checked_name("model", ModelName, self.model)
        checked_name("dtype", Dtype, self.dtype)
        if not 1 <= self.n_participants <= self.n_clients:
            found = f"{self.n_participants} participants of {self.n_clients} clients"
            raise UsageError(f"{found}: expected at least 1 and at most all")
        if self.n_clients > MOST_CLIENTS:
            raise UsageError(f"{self.n_clients} clients: expected {MOST_CLIENTS:,} at most")
        if not 1 <= self.n_rounds <= MOST_ROUNDS:
            raise UsageError(f"{self.n_rounds} rounds: expected 1 or more, and {MOST_ROUNDS:,} at most")
        if self.seed < 0 or (self.training_seed or 0) < 0:
            raise UsageError(f"seed {self.seed}, training seed {self.training_seed}: expected 0 or more")
        if not 0 <= self.drift <= 1 or self.noise_from < 0:
            found = f"drift {self.drift}, noise from round {self.noise_from}"
            raise UsageError(f"{found}: expected a drift from 0 to 1 and a round from 0 on")
        self._check_availability()
        self._check_copies()
        self._check_vertical()
        for name, shares in (("noise", self.noise_shares), ("flip", self.flip_shares)):
            if len(shares) not in (0, self.n_clients) or not all(0 <= share <= 1 for share in shares):
                raise UsageError(f"{name} shares {shares}: expected {self.n_clients} numbers from 0 to 1, or none")
            for copy, source in self.copies if shares else ():
                if shares[copy] != shares[source]:
                    found = f"{name} shares {shares[copy]} and {shares[source]}"
                    raise UsageError(f"client {copy} is a copy of {source}, but they have {found}; expected equal ones")
        self.learning_rate()
        self._check_training()

    def _check_availability(self) -> None:
        weights = self.availability
        is_valid = len(weights) == self.n_clients and all(math.isfinite(weight) and weight >= 0 for weight in weights)
        if weights and not (is_valid and sum(weight > 0 for weight in weights) >= self.n_participants):
            raise UsageError(
                f"availability {weights}: expected {self.n_clients} numbers of 0 or more, "
                f"of which {self.n_participants} or more are positive, or none"
            )

    def _check_copies(self) -> None:
        if len(dict(self.copies)) != len(self.copies):
            raise UsageError(f"copies {self.copies}: expected one source for each copy")
        sources = {source for _, source in self.copies}
        for copy, source in self.copies:
            if not (0 <= copy < self.n_clients and 0 <= source < self.n_clients) or copy in sources:
                raise UsageError(
                    f"client {copy} as a copy of {source}: expected two of {self.n_clients} clients, "
                    "and a source that is itself no copy"
                )

    def _check_vertical(self) -> None:
        checked_name("combination", Combine, self.combine)
        if not 1 <= self.width <= MOST_WIDTH:
            raise UsageError(f"width {self.width}: expected 1 to {MOST_WIDTH:,}")
        if self.partition != "vertical":
            if (self.width, self.combine, self.with_validation) != (4, "concatenation", True):
                raise UsageError("width, combine and validation are for --partition vertical; leave them out")
            return
        unfit = {
            f"model {self.model}": self.model not in ("logistic", "mlp"),
            "aggregation samples": self.aggregation == "samples",
            "noise or wrong labels": bool(self.noise_shares or self.flip_shares),
            "drift": self.drift > 0,
            "copies that are shuffled or halved": self.copies_shuffled or self.copies_halved,
            "momentum, adam or proximal": bool(self.momentum or self.proximal) or self.optimizer != "sgd",
        }
        for found, is_asked in unfit.items():
            if is_asked:
                raise UsageError(f"{found}: not for a vertical federation; leave it out")
        if not self.with_validation and (self.n_steps != 1 or self.n_epochs is not None):
            raise UsageError("without validation only one batch of a round is sent: expected --local-steps 1")

    def _check_training(self) -> None:
        checked_name("optimizer", OptimizerName, self.optimizer)
        if not (0 <= self.momentum < 1 and self.proximal >= 0 and math.isfinite(self.proximal)):
            found = f"momentum {self.momentum}, proximal {self.proximal}"
            raise UsageError(f"local training: {found}; expected a momentum from 0 to below 1 and a proximal ≥ 0")
        if self.optimizer == "adam" and self.momentum:
            raise UsageError(f"local training: momentum {self.momentum} with adam, which has its own; leave it out")
        amounts = [amount for amount in (self.n_steps, self.n_epochs) if amount is not None]
        if len(amounts) != 1 or not 1 <= amounts[0] <= MOST_STEPS:
            found = f"{self.n_steps} steps, {self.n_epochs} epochs"
            raise UsageError(f"local training: {found}; expected one of the two, from 1 to {MOST_STEPS:,}")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"local training: batch size {self.batch_size}, expected 1 or more, or none for all")

    def learning_rate(self) -> Schedule:
        return Schedule(self.schedule, self.rate, self.decay, self.convexity, self.smoothness)

    @property
    def seed_of_training(self) -> int:
        """The seed of batches and participants."""
        return self.seed if self.training_seed is None else self.training_seed

    def document(self) -> dict[str, Any]:
        document = asdict(self)
        defaults = {field.name: field.default for field in fields(self)}
        return {name: document[name] for name in document if name not in LATER or document[name] != defaults[name]}


def settings_from(document: dict[str, Any]) -> SimulationSettings:
    """The inverse of `document()`; an error names the wrong field."""
    import msgspec  # imported late, so that the command line refuses wrong options before it loads a library

    known = {field.name for field in fields(SimulationSettings)}
    for name in document:
        if name not in known:
            raise unknown_name("setting", name, known)
    try:
        return msgspec.convert(document, SimulationSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings of a simulation: {error}") from error
