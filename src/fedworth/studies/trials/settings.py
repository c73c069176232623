"""Every setting of the studies, and how it was chosen.

A *setup* is a data set with its model and training; a *scale* is how much of it is run:

    paper   the paper's N, K, T and number of runs, all samples, full widths: for a machine with a GPU or a long night
    page    what `docs/results.md` shows, which says what was cut: within two hours of one processor
    quick   the same studies with fewer seeds and rounds: within a quarter of an hour
    tiny    for the tests alone

The paper gives no learning rate; its text has one deterministic local step, "for simplicity", and its algorithm several
stochastic ones. So each study has two settings of a data set:

    NAME-small   paper-like: one full-batch step a round, at the rate at which FedSV alone comes nearest to the paper's
                 figure for FedSV (median d, or Spearman's correlation with the noise)
    NAME         practical: several steps on batches, at a rate that trains fast

What was chosen was chosen on seeds from 1000 on, by the rules of `results/calibration.py` from the numbers of
`sensitivity`, and is reported on seeds from 0 on. Nothing that was chosen looked at ComFedSV. Rank and penalty are the
package's defaults (5, counts, a hundredth of λ_collapse).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedworth.errors import UsageError, unknown_name
from fedworth.names import DatasetName, ModelName, PartitionName, Scale, checked_name
from fedworth.simulation.settings import SimulationSettings
from fedworth.studies.trials.extents import EXTENTS, Extent

FIRST_CHOICE_SEED = 1000
CELLS = ((1, 0.01), (1, 0.03), (1, 0.1), (1, 0.3), (10, 0.3), (50, 0.1))
"""Local steps and learning rates of the regime map, from small steps to large."""

LONG_CELLS = ((1, 0.01), (1, 0.3), (10, 0.3))
"""Those that are run for a hundred rounds too."""

SMALL = "-small"


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
    batch_size: int | None = 64

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
        """The same data shared out at random; synthetic data then have one source for all clients."""
        if self.dataset == "synthetic":
            return replace(self, dataset="synthetic-iid", partition="iid")
        return replace(self, partition="iid")


def trained(setup: Setup, n_steps: int, rate: float) -> Setup:
    """The same with other local training: one step is on all of a client's samples, several are on batches."""
    return replace(setup, n_steps=n_steps, rate=rate, batch_size=None if n_steps == 1 else 64)


def setting_of_name(name: str) -> str:
    """Which of its two settings the name of a setup stands for."""
    return "paper-like" if name.endswith(SMALL) else "practical"


_MNIST = Setup("mnist", "mlp", rate=0.3)
_SYNTHETIC = Setup("synthetic", "logistic", rate=0.03, partition="natural")
_NOISY_MNIST = Setup("mnist", "mlp", rate=0.1, noise_strength=30.0)
_SHARED = Setup("synthetic-iid", "logistic", rate=0.1, partition="iid", noise_strength=100.0)
_FASHION = Setup("fashion-mnist", "cnn", rate=0.1, n_steps=60, noise_strength=30.0)

PAPER_SETUPS: Mapping[str, Setup] = {
    **dict.fromkeys(("mnist", "mnist-long", "regime", "regime-long"), _MNIST),
    **dict.fromkeys(("mnist-small", "mnist-long-small"), trained(_MNIST, 1, 0.3)),
    **dict.fromkeys(("regime-logistic", "regime-logistic-long"), replace(_MNIST, model="logistic")),
    "synthetic": _SYNTHETIC,
    "synthetic-small": trained(_SYNTHETIC, 1, 0.01),
    "fashion-mnist": _FASHION,
    "mnist-noise": _NOISY_MNIST,
    "mnist-noise-small": replace(trained(_NOISY_MNIST, 1, 0.3), noise_strength=100.0),
    "synthetic-noise": _SHARED,
    "synthetic-noise-small": replace(trained(_SHARED, 1, 0.3), noise_strength=30.0),
    "fashion-mnist-noise": _FASHION,
    "labels": trained(_MNIST, 10, 0.03),
    "labels-small": trained(_MNIST, 1, 0.5),
}

CONVOLUTIONAL = Setup("mnist", "cnn", rate=0.1, n_steps=60)
"""A convolutional model that learns within ten rounds: sixty local steps instead of ten."""

_ONE_STEP = replace(PAPER_SETUPS["mnist"], partition="iid", rate=0.5, n_steps=1, batch_size=None)
FIDELITY_SETUPS: Mapping[str, Setup] = {
    # the demonstration's federation: full batches
    **dict.fromkeys(("digits", "digits-unheard"), Setup("digits", "logistic", rate=0.5, n_steps=5, batch_size=None)),
    **dict.fromkeys(("synthetic-50", "synthetic-batches", "synthetic-samples"), PAPER_SETUPS["synthetic"]),
    **dict.fromkeys(("mnist-10", "mnist-50", "mnist-unheard", "mnist-batches"), PAPER_SETUPS["mnist"]),
    **dict.fromkeys(("mnist-noisy", "mnist-labels-10", "mnist-iid"), PAPER_SETUPS["mnist"].iid()),
    **dict.fromkeys(("mnist-30-20", "mnist-30-50", "mnist-100-20", "mnist-100-50"), PAPER_SETUPS["mnist"]),
    # of `findings` and `measures`
    "digits-batches": Setup("digits", "logistic", rate=0.5, n_steps=5, batch_size=32),
    "digits-100": Setup("digits", "logistic", rate=0.5, n_steps=5, batch_size=None),
    "mnist-100": PAPER_SETUPS["mnist"],
    **dict.fromkeys(("flips-10", "flips-100"), PAPER_SETUPS["mnist"].iid()),
    "mnist-labels": _ONE_STEP,
    "mnist-cnn": CONVOLUTIONAL,
    "fashion-mnist-cnn": replace(CONVOLUTIONAL, dataset="fashion-mnist"),
}


def _cut(setup: Setup, *, is_long: bool) -> Setup:
    """A setup cut to what a processor carries: fewer samples, of a hundred rounds fewer still, and narrower models."""
    if setup.is_convolutional:
        return replace(setup, hidden=(8, 16, 64), train_limit=10_000, test_limit=200, batch_size=32)
    if setup.dataset != "mnist":
        return setup
    limits = (5_000, 300) if is_long else (10_000, 500)
    hidden = (64,) if setup.model == "mlp" else ()
    return replace(setup, hidden=hidden, train_limit=limits[0], test_limit=limits[1])


def _small(setup: Setup) -> Setup:
    """A setup of `fidelity` cut to what two processors carry: the truth takes every coalition."""
    if setup.is_convolutional:
        return replace(setup, hidden=(8, 16, 64), train_limit=10_000, test_limit=100, batch_size=32)
    return replace(setup, hidden=(64,), train_limit=10_000, test_limit=300) if setup.model == "mlp" else setup


PAGE_SETUPS: Mapping[str, Setup] = {
    **{name: _cut(setup, is_long="-long" in name) for name, setup in PAPER_SETUPS.items()},
    **{name: _small(setup) for name, setup in FIDELITY_SETUPS.items()},
}

TINY_SETUPS: Mapping[str, Setup] = {
    name: replace(setup, test_limit=30, n_steps=2, batch_size=8)
    for name, setup in {
        "synthetic": _SYNTHETIC,
        "synthetic-iid": replace(_SHARED, train_limit=200),
        "digits": Setup("digits", "mlp", rate=0.1, hidden=(8,), train_limit=120),
        "digits-small": Setup("digits", "mlp", rate=0.1, hidden=(8,), train_limit=120),
    }.items()
}

SETUPS = {
    "paper": {**PAPER_SETUPS, **FIDELITY_SETUPS},
    "page": PAGE_SETUPS,
    "quick": PAGE_SETUPS,
    "tiny": TINY_SETUPS,
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
