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
    rate_step: int = 10  # of `noisy-labels`: from 10 to 50 percent of the clients a round by so many
    special: str = ""  # of `fidelity`: what is special about the federation; of `sensitivity`: what is varied
    first_seed: int = 0

    def has_truth(self, position: int) -> bool:
        """Whether the truth is measured for the seed at this position."""
        return self.n_truth_seeds is None or position < self.n_truth_seeds


FRESH = 100
"""Of ten clients: an earlier version was shown on seeds from 0 on, and what it showed was looked at."""

FIDELITY: Mapping[str, Extent] = {
    "digits": Extent(20, first_seed=FRESH),
    "synthetic": Extent(20, first_seed=FRESH),
    "mnist-10": Extent(40, first_seed=FRESH),
    "mnist-noisy": Extent(20, special="noisy data", first_seed=FRESH),
    "mnist-labels-10": Extent(20, special="noisy labels", first_seed=FRESH),
    "mnist-50": Extent(20, 50, first_seed=FRESH),
    "synthetic-50": Extent(20, 50, first_seed=FRESH),
    "digits-unheard": Extent(20, 30, special="unheard", first_seed=FRESH),
    "mnist-unheard": Extent(20, 50, special="unheard", first_seed=FRESH),
    "mnist-iid": Extent(20, first_seed=FRESH),
    "synthetic-batches": Extent(20, special="batches", first_seed=FRESH),
    "mnist-batches": Extent(20, special="batches", first_seed=FRESH),
    "synthetic-samples": Extent(20, special="samples", first_seed=FRESH),
    "fashion-mnist-cnn": Extent(10, first_seed=FRESH),
    "mnist-cnn": Extent(10, first_seed=FRESH),
    "mnist-30-20": Extent(20, 20, n_clients=30),
    "mnist-30-50": Extent(20, 50, n_clients=30),
    "mnist-labels": Extent(20, 100, n_clients=100, special="noisy labels"),
    "mnist-100-20": Extent(20, 20, n_clients=100),
    "mnist-100-50": Extent(20, 50, n_clients=100),
}

FINDINGS: Mapping[str, Extent] = {"digits-batches": Extent(5), "mnist-10": Extent(5)}

MEASURES: Mapping[str, Extent] = {
    "digits": Extent(5),
    "mnist-10": Extent(5),
    "flips-10": Extent(5, special="noisy labels"),
    "digits-100": Extent(5, n_clients=100),
    "mnist-100": Extent(5, n_clients=100),
    "flips-100": Extent(5, n_clients=100, special="noisy labels"),
}

PAIRS = ("mnist-small", "mnist", "synthetic-small", "synthetic")
LONG = ("mnist-long-small", "mnist-long", "synthetic-small", "synthetic")
NOISY = ("mnist-noise-small", "mnist-noise", "synthetic-noise-small", "synthetic-noise")
LABELS = ("labels-small", "labels")
"""The setups of the studies; `settings` says what they are."""


def _of(names: tuple[str, ...], extent: Extent) -> dict[str, Extent]:
    return dict.fromkeys(names, extent)


def _varied(n_seeds: int, n_truth_seeds: int) -> dict[str, Extent]:
    """What `sensitivity` varies on which setup; the completion's settings where the truth is measured."""
    steps = Extent(2 * n_seeds, n_truth_seeds=n_truth_seeds)
    noise = Extent(n_seeds, n_truth_seeds=0, special="noise strength")
    orders = Extent(n_seeds, n_clients=100, special="permutations")
    return {**_of(("mnist", "synthetic"), steps), **_of(("mnist-noise", "synthetic-noise"), noise), "labels": orders}


def _regime(short: Extent, long: Extent) -> dict[str, Extent]:
    return {**_of(("regime", "regime-logistic"), short), **_of(("regime-long", "regime-logistic-long"), long)}


EXTENTS: Mapping[str, Mapping[str, Mapping[str, Extent]]] = {
    "paper": {
        "regime": _regime(Extent(50), Extent(10, 100)),
        "unfairness": _of(PAIRS[:2], Extent(50)),
        "fairness": _of((*PAIRS, "fashion-mnist"), Extent(50)),
        "spectrum": _of(LONG, Extent(10, 100)),
        "rank": _of(LONG[:2], Extent(10, 100)),
        "noisy-data": _of((*NOISY, "fashion-mnist-noise"), Extent(50)),
        "noisy-labels": _of(LABELS, Extent(10, 100, n_clients=100)),
        "time": {"synthetic": Extent(5, 100, n_clients=100)},
        "models": _of(LONG, Extent(10, 100)),
        "sensitivity": _varied(20, 10),
        "fidelity": FIDELITY,
        "findings": FINDINGS,
        "measures": MEASURES,
    },
    "page": {
        "regime": _regime(Extent(10), Extent(10, 100)),
        "unfairness": _of(PAIRS[:2], Extent(50)),
        "fairness": {**_of(PAIRS, Extent(50)), "fashion-mnist": Extent(20, n_truth_seeds=0)},
        "spectrum": _of(LONG, Extent(5, 100)),
        "rank": _of(LONG[:2], Extent(5, 100)),
        "noisy-data": {**_of(NOISY, Extent(50)), "fashion-mnist-noise": Extent(20, n_truth_seeds=0)},
        "noisy-labels": _of(LABELS, Extent(10, 100, n_clients=100, rate_step=20)),
        "time": {"synthetic": Extent(5, 10, n_clients=100, client_step=30)},
        "models": _of(LONG, Extent(5, 100)),
        "sensitivity": _varied(10, 5),
        "fidelity": FIDELITY,
        "findings": FINDINGS,
        "measures": MEASURES,
    },
    "quick": {
        "regime": _regime(Extent(2), Extent(1, 30)),
        "unfairness": _of(PAIRS[:2], Extent(10)),
        "fairness": _of(PAIRS, Extent(10)),
        "spectrum": _of(LONG, Extent(1, 100)),
        "rank": _of(LONG[:2], Extent(1, 100)),
        "noisy-data": _of(NOISY, Extent(8)),
        "noisy-labels": _of(LABELS, Extent(1, 20, n_clients=100, rate_step=20)),
        "time": {"synthetic": Extent(1, 10, n_clients=70, client_step=30)},
        "models": _of(LONG, Extent(1, 100)),
        "sensitivity": _varied(1, 1),
        "fidelity": {name: FIDELITY[name] for name in ("digits", "synthetic")},
        "findings": {"digits-batches": Extent(2)},
        "measures": {"digits": Extent(1)},
    },
    "tiny": {
        "regime": {"digits": Extent(2, 3)},
        "unfairness": {"digits": Extent(3, 3)},
        "fairness": {"synthetic": Extent(2, 3), "digits": Extent(3, 3)},
        "spectrum": {"digits": Extent(1, 4)},
        "rank": {"digits": Extent(1, 4)},
        "noisy-data": {"synthetic-iid": Extent(1, 3), "digits": Extent(2, 3, n_truth_seeds=1)},
        "noisy-labels": {"digits": Extent(1, 3, n_clients=20, n_permutations=20)},
        "time": {"synthetic": Extent(1, 3, n_permutations=6)},
        "models": {"digits": Extent(1, 4)},
        "sensitivity": {
            "synthetic": Extent(1, 2),
            "synthetic-iid": Extent(1, 2, n_truth_seeds=0, special="noise strength"),
            "digits": Extent(1, 2, n_clients=20, special="permutations"),
        },
        "fidelity": {"digits": Extent(2, 4)},
        "findings": {"digits": Extent(1, 3, special="free rider: no update")},
        "measures": {"digits": Extent(1, 2)},
    },
}
