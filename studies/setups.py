"""Setups: a data set, the model that learns it, and how clients train. Studies run each at one of two scales.

    page    what the pages show: hours on one processor; few seeds of one setup take minutes
    tiny    for tests: seconds

Samples are limited and models are narrow, so that one processor is enough.

The paper gives no learning rate. Its text describes one deterministic local step ("for simplicity"), its algorithm
several stochastic ones. So most studies run each data set with two kinds of training:

    NAME-small   paper-like: one full-batch step a round, at the rate where FedSV comes nearest to the paper's number
                 for FedSV (median d, or Spearman's correlation with the noise)
    NAME         practical: several steps on batches, at a rate that trains fast

These choices were made on seeds from 1000 on, from the `sensitivity` study by the rules in `calibration`, and looked at
FedSV only. The studies report seeds below 1000. Rank and penalty are fedworth's defaults (rank 5, penalty by counts, a
hundredth of λ_collapse).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedworth import SimulationSettings

SCALES = ("page", "tiny")
FIRST_CHOICE_SEED = 1000
SMALL = "-small"


@dataclass(frozen=True)
class Setup:
    """A data set, a model, and the local training."""

    dataset: str
    model: str
    rate: float
    noise_strength: float = 10.0
    partition: str = "two-class"
    hidden: tuple[int, ...] = ()
    train_limit: int | None = None
    test_limit: int | None = None
    n_steps: int = 10
    batch_size: int | None = 64
    width_divisor: int = 1

    @property
    def is_convolutional(self) -> bool:
        """Whether the model is convolutional, and therefore slow."""
        return self.model == "cnn" or self.model.startswith("vgg16")

    def federation(self, seed: int, **changes: Any) -> SimulationSettings:
        """Ten clients, three a round, ten rounds, unless changed."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return SimulationSettings(**{**fields, "seed": seed, **changes})

    def iid(self) -> "Setup":
        """The same data, distributed at random. Synthetic data then has one source for all clients."""
        if self.dataset == "synthetic":
            return replace(self, dataset="synthetic-iid", partition="iid")
        return replace(self, partition="iid")

    def trained(self, n_steps: int, rate: float) -> "Setup":
        """The same with other local training: a single step uses all samples of a client, several use batches."""
        return replace(self, n_steps=n_steps, rate=rate, batch_size=None if n_steps == 1 else 64)


@dataclass(frozen=True)
class Extent:
    """How much of a setup a study runs at a scale."""

    n_seeds: int
    n_rounds: int = 10
    n_truth_seeds: int | None = None  # how many of the seeds have a truth; None: all
    n_clients: int = 10
    n_permutations: int | None = None  # of Algorithm 1; None: fedworth's default
    step: int = 10  # time: clients from 10 to n_clients by this step; noisy-labels: percent from 10 to 50
    special: str = ""  # what is special about the federation, or what `sensitivity` varies
    first_seed: int = 0

    def has_truth(self, position: int) -> bool:
        """Whether the seed at this position has a truth."""
        return self.n_truth_seeds is None or position < self.n_truth_seeds


def setting_of(name: str) -> str:
    """Which of the two kinds of training a setup's name stands for."""
    return "paper-like" if name.endswith(SMALL) else "practical"


_MNIST = Setup("mnist", "mlp", rate=0.3, hidden=(64,), train_limit=10_000, test_limit=500)
_LONG = replace(_MNIST, train_limit=5_000, test_limit=300)
_FEWER_TESTS = replace(_MNIST, test_limit=300)
_SYNTHETIC = Setup("synthetic", "logistic", rate=0.03, partition="natural")
_NOISY_MNIST = replace(_MNIST, rate=0.1, noise_strength=30.0)
_ONE_SOURCE = Setup("synthetic-iid", "logistic", rate=0.1, partition="iid", noise_strength=100.0)
_CNN = Setup(
    "mnist", "cnn", rate=0.1, hidden=(8, 16, 64), train_limit=10_000, test_limit=100, n_steps=60, batch_size=32
)  # sixty steps, so that it learns within ten rounds
_FASHION = replace(_CNN, dataset="fashion-mnist", test_limit=200, noise_strength=30.0)
# Deep, so that the steps are long; GroupNorm, since averaged statistics of BatchNorm fit no coalition
_CIFAR = replace(_FASHION, dataset="cifar10", model="vgg16-gn", hidden=(), rate=0.05, width_divisor=8)
_DIGITS = Setup("digits", "logistic", rate=0.5, n_steps=5, batch_size=None)  # as in the demonstration

_PAPERS: Mapping[str, Setup] = {
    **dict.fromkeys(("mnist", "regime"), _MNIST),
    "mnist-small": _MNIST.trained(1, 0.3),
    **dict.fromkeys(("mnist-long", "regime-long"), _LONG),
    "mnist-long-small": _LONG.trained(1, 0.3),
    "regime-logistic": replace(_MNIST, model="logistic", hidden=()),
    "regime-logistic-long": replace(_LONG, model="logistic", hidden=()),
    "synthetic": _SYNTHETIC,
    "synthetic-small": _SYNTHETIC.trained(1, 0.01),
    **dict.fromkeys(("fashion-mnist", "fashion-mnist-noise"), _FASHION),
    "mnist-noise": _NOISY_MNIST,
    "mnist-noise-small": replace(_NOISY_MNIST.trained(1, 0.3), noise_strength=100.0),
    "synthetic-noise": _ONE_SOURCE,
    "synthetic-noise-small": replace(_ONE_SOURCE.trained(1, 0.3), noise_strength=30.0),
    "cifar10": _CIFAR,
    "cifar10-noise": replace(_CIFAR, n_steps=100, rate=0.1),
    "cifar10-labels": replace(_CIFAR, n_steps=30, rate=0.1),
    "labels": _MNIST.trained(10, 0.03),
    "labels-small": _MNIST.trained(1, 0.5),
}
_OWN: Mapping[str, Setup] = {
    **dict.fromkeys(("digits", "digits-incomplete", "digits-100"), _DIGITS),
    "digits-batches": replace(_DIGITS, batch_size=32),
    **dict.fromkeys(("synthetic-50", "synthetic-batches", "synthetic-samples"), _SYNTHETIC),
    **dict.fromkeys(("mnist-10", "mnist-50", "mnist-100", "mnist-incomplete", "mnist-batches"), _FEWER_TESTS),
    **dict.fromkeys(("mnist-30-20", "mnist-30-50", "mnist-100-20", "mnist-100-50"), _FEWER_TESTS),
    **dict.fromkeys(("mnist-noisy", "mnist-labels-10", "mnist-iid", "flips-10", "flips-100"), _FEWER_TESTS.iid()),
    "mnist-labels": _FEWER_TESTS.trained(1, 0.5).iid(),
    "gaming": replace(_FEWER_TESTS, dataset="digits", rate=0.1, n_steps=5, batch_size=32),  # longer updates pay
    "mnist-cnn": _CNN,
    "fashion-mnist-cnn": replace(_CNN, dataset="fashion-mnist"),
}

_LINEAR = Setup("mnist", "logistic", rate=0.1, train_limit=4_000, batch_size=32)
_FASHIONS = replace(_LINEAR, dataset="fashion-mnist")
_KINDS: Mapping[str, Setup] = {
    "two-classes": _LINEAR,
    "network": replace(_LINEAR, model="mlp", hidden=(32,)),
    "sizes": replace(_FASHIONS, partition="quantity"),
    "label-skew": replace(_LINEAR, partition="dirichlet"),
    "momentum": replace(_FASHIONS, rate=0.02, n_steps=45),  # 500 samples each: three epochs
    "adam": replace(_LINEAR, partition="dirichlet", rate=0.003, n_steps=45),
    "feature-shift": replace(_LINEAR, partition="feature"),
    "drift": _LINEAR,
    "turned-noisy": replace(_FASHIONS, partition="iid"),
    "availability": _LINEAR,
    "regression": Setup("regression", "logistic", rate=0.1, partition="natural", batch_size=32),
    "many-rounds": _FASHIONS,
    "cifar": Setup(
        "cifar10",
        "cnn",
        rate=0.02,
        partition="quantity",
        hidden=(4, 8, 32),
        train_limit=5_000,
        test_limit=2_000,
        n_steps=60,
        batch_size=32,
    ),
}
"""Kinds of federations of the studies `coverage` and `luck`; all test samples, so that most are left for the truth."""

_NETWORK = Setup("mnist", "mlp", rate=0.1, hidden=(32,), train_limit=3_000, n_steps=20)
_RETRAINED: Mapping[str, Setup] = {
    "retraining-digits": replace(_DIGITS, n_steps=10, batch_size=32),
    "retraining-digits-1": replace(_DIGITS, n_steps=1),
    "retraining-mnist": _NETWORK,
    "retraining-mnist-1": _NETWORK.trained(1, 0.3),
}

_TINY = {
    name: replace(setup, test_limit=30, n_steps=2, batch_size=8)
    for name, setup in {
        "synthetic": _SYNTHETIC,
        "synthetic-iid": replace(_ONE_SOURCE, train_limit=200),
        "digits": Setup("digits", "mlp", rate=0.1, hidden=(8,), train_limit=120),
    }.items()
}
SETUPS: Mapping[str, Mapping[str, Setup]] = {"page": {**_PAPERS, **_OWN, **_KINDS, **_RETRAINED}, "tiny": _TINY}
"""By scale and name."""
