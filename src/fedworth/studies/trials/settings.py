"""Every setting of the studies, and how it was chosen.

A *setup* is a data set with its model and training; a *scale* is how much of it is run:

    paper   the paper's N, K, T and number of runs, all samples, full widths: for a machine with a GPU or a long night
    page    what `docs/results.md` shows, which says what was cut: a few hours on two cores
    quick   the same studies with fewer seeds and rounds: half an hour on two cores
    tiny    for the tests alone

What the paper does not say was chosen on seeds from 1000 on and is reported on seeds from 0 on (`sensitivity` shows
the grids). The learning rate is the one whose loss falls most in ten rounds (of the convolutional models: the one of
the best accuracy in ten rounds, IID and not; for VGG16 .05 and .1 are within a point of each other). The noise
strength, of 1, 3 and 10, is the one at which the truth comes nearest to ranking the noisy clients as the paper's does:
10 standard deviations of the features. Neither looks at ComFedSV. Local training is ten steps on batches; rank and
penalty are the package's defaults (rank 5, counts, a hundredth of λ_collapse).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedworth.errors import UsageError, unknown_name
from fedworth.federation.simulation.settings import SimulationSettings
from fedworth.names import DatasetName, ModelName, PartitionName, Scale, checked_name

FIRST_CHOICE_SEED = 1000
RATES = (0.03, 0.1, 0.3, 1.0)
CONVOLUTIONAL_RATES = (0.02, 0.05, 0.1, 0.2)
STRENGTHS = (1.0, 3.0, 10.0)
FLIPS = (0.1, 0.2, 0.3)


@dataclass(frozen=True, slots=True)
class Setup:
    """A data set, the model that learns it, and how a client trains."""

    dataset: DatasetName
    model: ModelName
    rate: float
    noise_strength: float = 10.0
    partition: PartitionName = "two-class"
    alpha: float = 1.0
    beta: float = 1.0
    hidden: tuple[int, ...] = ()
    width_divisor: int = 1
    train_limit: int | None = None
    test_limit: int | None = None
    n_steps: int = 10
    batch_size: int = 64

    @property
    def is_convolutional(self) -> bool:
        """Whether a model is so slow that its learning rate is chosen by accuracy alone."""
        return self.model in {"cnn", "vgg16", "vgg16-bn"}

    def federation(self, seed: int) -> SimulationSettings:
        """Ten clients, three a round, ten rounds: what most studies start from."""
        return SimulationSettings(
            dataset=self.dataset,
            alpha=self.alpha,
            beta=self.beta,
            train_limit=self.train_limit,
            test_limit=self.test_limit,
            partition=self.partition,
            copies=(),
            noise_strength=self.noise_strength,
            model=self.model,
            hidden=self.hidden,
            width_divisor=self.width_divisor,
            n_steps=self.n_steps,
            batch_size=self.batch_size,
            rate=self.rate,
            seed=seed,
        )

    def iid(self) -> "Setup":
        """The same data shared out at random; synthetic data then have one source for all clients, and its rate."""
        if self.dataset == "synthetic":
            return replace(self, dataset="synthetic-iid", partition="iid", rate=PAPER_SETUPS["synthetic-iid"].rate)
        return replace(self, partition="iid")


PAPER_SETUPS: Mapping[str, Setup] = {
    "synthetic": Setup("synthetic", "logistic", rate=0.03, partition="natural"),
    "synthetic-iid": Setup("synthetic-iid", "logistic", rate=0.1, partition="iid"),
    # what the paper calls IID: every client still has its own source
    "synthetic-0-0": Setup("synthetic", "logistic", rate=0.03, partition="natural", alpha=0.0, beta=0.0),
    "mnist": Setup("mnist", "mlp", rate=0.3),
    "fashion-mnist": Setup("fashion-mnist", "cnn", rate=0.1),
    # without batch normalisation it learned nothing in ten rounds; the paper started from a pre-trained model
    "cifar10": Setup("cifar10", "vgg16-bn", rate=0.05),
    "cifar10-cnn": Setup("cifar10", "cnn", rate=0.1),
}

QUICK_SETUPS: Mapping[str, Setup] = {
    **PAPER_SETUPS,
    "mnist": replace(PAPER_SETUPS["mnist"], hidden=(64,), train_limit=10_000, test_limit=1_000),
    "fashion-mnist": replace(
        PAPER_SETUPS["fashion-mnist"], hidden=(8, 16, 64), train_limit=10_000, test_limit=200, batch_size=32
    ),
    "cifar10": replace(PAPER_SETUPS["cifar10"], width_divisor=8, train_limit=10_000, test_limit=100, batch_size=32),
    # the paper's model in its own width
    "cifar10-full": replace(PAPER_SETUPS["cifar10"], test_limit=50, batch_size=32),
    "cifar10-cnn": replace(
        PAPER_SETUPS["cifar10-cnn"], hidden=(8, 16, 64), train_limit=10_000, test_limit=50, batch_size=32
    ),
}

TINY_SETUPS: Mapping[str, Setup] = {
    name: replace(setup, test_limit=30, n_steps=2, batch_size=8)
    for name, setup in {
        "synthetic": PAPER_SETUPS["synthetic"],
        "synthetic-iid": replace(PAPER_SETUPS["synthetic-iid"], train_limit=200),
        "digits": Setup("digits", "mlp", rate=0.1, hidden=(8,), train_limit=120),
    }.items()
}

SETUPS = {"paper": PAPER_SETUPS, "page": QUICK_SETUPS, "quick": QUICK_SETUPS, "tiny": TINY_SETUPS}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a data set a study runs at a scale."""

    n_seeds: int
    n_rounds: int = 10
    n_truth_seeds: int | None = None  # seeds whose truth is measured; none given: all
    n_clients: int = 10
    n_permutations: int | None = None  # at most so many permutations, of Algorithm 1 and of FedSV in a round
    client_step: int = 10  # of `time`: from 10 clients to n_clients by so many
    test_limit: int | None = None  # test samples, where fewer than the setup's

    def has_truth(self, position: int) -> bool:
        """Whether the truth is measured for the seed at this position."""
        return self.n_truth_seeds is None or position < self.n_truth_seeds


EXTENTS: Mapping[str, Mapping[str, Mapping[str, Extent]]] = {
    "paper": {
        "unfairness": {"mnist": Extent(50)},
        "spectrum": {name: Extent(5, 100) for name in ("synthetic", "mnist", "cifar10-cnn")},
        "rank": {"mnist": Extent(5, 100)},
        "fairness": {name: Extent(50) for name in ("synthetic", "mnist", "fashion-mnist", "cifar10")},
        "noisy-data": {
            name: Extent(50) for name in ("synthetic-iid", "synthetic-0-0", "mnist", "fashion-mnist", "cifar10")
        },
        "noisy-labels": {
            name: Extent(10, 100, n_clients=100) for name in ("synthetic-iid", "mnist", "fashion-mnist", "cifar10")
        },
        "time": {"synthetic": Extent(5, 100, n_clients=100)},
        "models": {name: Extent(5, 100) for name in ("synthetic", "mnist", "fashion-mnist", "cifar10")},
        "sensitivity": {name: Extent(20, n_clients=100) for name in PAPER_SETUPS if name != "synthetic-0-0"},
    },
    "page": {
        "unfairness": {"mnist": Extent(50)},
        "spectrum": {"synthetic": Extent(10, 100), "mnist": Extent(10, 100), "cifar10-cnn": Extent(3, 50)},
        "rank": {"mnist": Extent(10, 100)},
        "fairness": {
            "synthetic": Extent(50),
            "mnist": Extent(50),
            "fashion-mnist": Extent(50, n_truth_seeds=3),
            "cifar10": Extent(20, n_truth_seeds=0),
            "cifar10-full": Extent(2, 3, n_truth_seeds=0),
        },
        "noisy-data": {
            "synthetic-iid": Extent(50),
            "synthetic-0-0": Extent(50),
            "mnist": Extent(50),
            "fashion-mnist": Extent(50, n_truth_seeds=5),
            "cifar10": Extent(12, n_truth_seeds=3),
        },
        "noisy-labels": {
            "synthetic-iid": Extent(3, 100, n_clients=100),
            "mnist": Extent(3, 100, n_clients=100),
            "fashion-mnist": Extent(2, 30, n_clients=100, n_permutations=20, test_limit=100),
            "cifar10": Extent(2, 5, n_clients=100, n_permutations=20, test_limit=50),
        },
        "time": {"synthetic": Extent(2, 100, n_clients=100, client_step=30)},
        "models": {
            "synthetic": Extent(10, 100),
            "mnist": Extent(10, 100),
            "fashion-mnist": Extent(3, 200),
            "cifar10": Extent(3, 100),
        },
        "sensitivity": {name: Extent(3, n_clients=100) for name in ("synthetic", "synthetic-iid", "mnist")}
        | {name: Extent(3) for name in ("fashion-mnist", "cifar10", "cifar10-cnn")},
    },
    "quick": {
        "unfairness": {"mnist": Extent(50)},
        "spectrum": {"synthetic": Extent(2, 100), "mnist": Extent(2, 100), "cifar10-cnn": Extent(1, 10)},
        "rank": {"mnist": Extent(2, 100)},
        "fairness": {
            "synthetic": Extent(50),
            "mnist": Extent(50),
            "fashion-mnist": Extent(6, n_truth_seeds=0),
            "cifar10": Extent(3, n_truth_seeds=0),
        },
        "noisy-data": {
            "synthetic-iid": Extent(20),
            "synthetic-0-0": Extent(20),
            "mnist": Extent(20),
            "fashion-mnist": Extent(5, n_truth_seeds=0),
            "cifar10": Extent(3, n_truth_seeds=0),
        },
        "noisy-labels": {
            "synthetic-iid": Extent(2, 20, n_clients=100),
            "mnist": Extent(2, 20, n_clients=100),
            "fashion-mnist": Extent(1, 5, n_clients=100, n_permutations=20, test_limit=100),
            "cifar10": Extent(1, 5, n_clients=100, n_permutations=10, test_limit=50),
        },
        "time": {"synthetic": Extent(2, 10, n_clients=100, client_step=30)},
        "models": {
            "synthetic": Extent(2, 100),
            "mnist": Extent(2, 100),
            "fashion-mnist": Extent(1, 30),
            "cifar10": Extent(1, 30),
        },
        "sensitivity": {name: Extent(2, n_clients=100) for name in ("synthetic", "synthetic-iid", "mnist")}
        | {name: Extent(1) for name in ("fashion-mnist", "cifar10", "cifar10-cnn")},
    },
    "tiny": {
        "unfairness": {"digits": Extent(3, 3)},
        "spectrum": {"digits": Extent(1, 4)},
        "rank": {"digits": Extent(1, 4)},
        "fairness": {"synthetic": Extent(2, 3), "digits": Extent(3, 3)},
        "noisy-data": {"synthetic-iid": Extent(1, 3), "digits": Extent(2, 3, n_truth_seeds=1)},
        "noisy-labels": {"digits": Extent(1, 3, n_clients=20, n_permutations=6)},
        "time": {"synthetic": Extent(1, 3, n_permutations=6)},
        "models": {"digits": Extent(1, 3)},
        "sensitivity": {"synthetic-iid": Extent(1, 2, n_clients=20, n_permutations=6)},
    },
}


def setup_of(scale: Scale, name: str) -> Setup:
    """The setup of a data set at a scale."""
    setups = SETUPS[checked_name("scale", scale)]
    if name not in setups:
        raise unknown_name("data set of the studies", name, setups)
    return setups[name]


def extents_of(scale: Scale, study: str, names: Sequence[str] = ()) -> dict[str, Extent]:
    """The data sets of a study at a scale, or those of them that are named; with how much of each is run."""
    known = EXTENTS[checked_name("scale", scale)][study]
    for name in names:
        if name not in known:
            raise unknown_name(f"data set of the study {study!r}", name, known)
    return {name: extent for name, extent in known.items() if not names or name in names}


def seeds_from(text: str) -> tuple[int, ...]:
    """Seeds from the command line: 0-9, or 3,5,8."""
    try:
        seeds: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        raise UsageError(f"seeds {text!r}: expected a range such as 0-9, or numbers separated by commas") from None
    if not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds {text!r}: expected one seed or more, each once")
    return tuple(seeds)
