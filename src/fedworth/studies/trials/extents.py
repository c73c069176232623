"""How much of each data set a study runs at a scale; `settings` says what the scales are for."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a data set a study runs at a scale."""

    n_seeds: int
    n_rounds: int = 10
    n_truth_seeds: int | None = None  # seeds whose truth is measured; none given: all
    n_clients: int = 10
    n_permutations: int | None = None  # at most so many orders, of Algorithm 1 and of FedSV in a round
    client_step: int = 10  # of `time`: from 10 clients to n_clients by so many
    test_limit: int | None = None  # test samples, where fewer than the setup's
    special: str = ""  # of `fidelity`: what is special about the federation

    def has_truth(self, position: int) -> bool:
        """Whether the truth is measured for the seed at this position."""
        return self.n_truth_seeds is None or position < self.n_truth_seeds


FIDELITY: Mapping[str, Extent] = {
    "digits": Extent(20),
    "synthetic": Extent(20),
    "mnist-10": Extent(20),
    "mnist-noisy": Extent(20, special="noisy data"),
    "mnist-50": Extent(10, 50),
    "synthetic-50": Extent(10, 50),
    "digits-unheard": Extent(10, 30, special="unheard"),
    "mnist-iid": Extent(10),
    "synthetic-batches": Extent(10, special="batches"),
    "mnist-batches": Extent(10, special="batches"),
    "synthetic-samples": Extent(10, special="samples"),
    "fashion-mnist-cnn": Extent(5),
    "mnist-cnn": Extent(5),
    "mnist-unheard": Extent(10, 50, special="unheard"),
    "mnist-30-20": Extent(3, 20, n_clients=30),
    "mnist-30-50": Extent(2, 50, n_clients=30),
    "mnist-labels": Extent(2, 100, n_clients=100, special="noisy labels"),
    "mnist-100-20": Extent(2, 20, n_clients=100),
    "mnist-100-50": Extent(2, 50, n_clients=100),
}

VARIED = ("synthetic", "synthetic-iid", "mnist", "fashion-mnist", "cifar10", "cifar10-cnn")
"""The data sets of `sensitivity` in the paper's size."""

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
        "sensitivity": {name: Extent(20, n_clients=100) for name in VARIED},
        "fidelity": FIDELITY,
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
        "fidelity": FIDELITY,
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
        "fidelity": {name: FIDELITY[name] for name in ("digits", "synthetic")},
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
        "fidelity": {"digits": Extent(2, 4)},
    },
}
