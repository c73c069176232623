"""Forward passes that a round's Shapley values take, beside enumeration and other estimators; prints a Markdown table.

    python benchmarks/heavy.py [--data FOLDER] [--seeds 20] [--first 0] [--alone] [--samples 400] [name …]

Each row is a round of a small federation on Fashion-MNIST whose 2^N coalitions are all evaluated once, so that the
exact values of every test sample are known. A pass is one coalition on all test samples. ρ is the Monte Carlo error
over the test set's standard error, both root mean squares over clients: `true` from the exact values, `said` by the
estimator, which stops at 1/4. `bias` is the largest |t| of the mean over the seeds; at the end follows how often one
as large is due to chance. `held`: how often exact values plus the test set's error lie within 1.96 of the stated
standard errors, over 500 test sets for each seed, drawn from the test samples with replacement. Other estimators
get as many passes as they need for the same true ρ, found by doubling. shapiq is used if it is installed.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import stdtr
from torch import nn

from fedworth.arrays import stream
from fedworth.coalitions import coalitions_of
from fedworth.games.ensemble import Estimate, ensemble_shapley
from fedworth.games.game import ModelGame
from fedworth.games.permutations import draw_permutations, permutation_shapley
from fedworth.games.shapley import shapley_values
from fedworth.ledger.ledger import Round
from fedworth.ledger.manifest import RoundEntry
from fedworth.names import Measure, Weighting
from fedworth.oracle.oracle import LoopOracle
from fedworth.simulation.datasets import DatasetRequest, load_dataset
from fedworth.task.task import Task

Array = NDArray[np.float64]
AIM = 0.25
N_TEST_SETS = 500


class Residual(nn.Module):
    """x + two convolutions with BatchNorm; the first may halve the image."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(n_out),
        )
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(n_in, n_out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = F.relu(self.body(x) + self.short(x))
        return found


class Adapted(nn.Module):
    """A linear layer whose frozen weight is corrected by two low-rank matrices."""

    def __init__(self, n_in: int, n_out: int, rank: int = 2) -> None:
        super().__init__()
        self.frozen = nn.Linear(n_in, n_out)
        self.lora_a = nn.Parameter(torch.randn(rank, n_in) / n_in**0.5)
        self.lora_b = nn.Parameter(torch.zeros(n_out, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.frozen(x) + x @ self.lora_a.t() @ self.lora_b.t()
        return found


class Transformer(nn.Module):
    """A transformer of one layer on the rows of an image; adapters may be all that is exchanged."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(14, width), nn.Parameter(torch.randn(14, width) * 0.1)
        self.qkv, self.out = Adapted(width, 3 * width), Adapted(width, width)
        self.feed, self.norms = Adapted(width, width), nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x[:, 0]) + self.place
        q, k, v = self.qkv(self.norms[0](h)).chunk(3, dim=-1)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v))
        h = h + self.feed(F.gelu(self.norms[1](h)))
        found: torch.Tensor = self.head(h.mean(1))
        return found


def logistic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(196, 10))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(144, 10)),
    )


def resnet8() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


@dataclass(frozen=True)
class Case:
    """A round: the module, how many clients, and how their data and weights differ."""

    make: Callable[[], nn.Module]
    n_clients: int
    concentration: float = 0.5  # of the Dirichlet distribution of labels
    measure: Measure = "loss"
    weighting: Weighting = "samples"
    exchanged: str | None = None
    n_rounds: int = 3  # which are trained before
    rate: float = 0.1


CASES = {
    "logistic, N = 10": Case(logistic, 10),
    "MLP, N = 5": Case(perceptron, 5, 0.1),
    "MLP, N = 10": Case(perceptron, 10, 0.1, weighting="uniform"),
    "MLP, N = 12": Case(perceptron, 12),
    "MLP, fixed weights, N = 10": Case(perceptron, 10, 0.1, weighting="fixed"),
    "CNN with BatchNorm, N = 8": Case(convolutional, 8),
    "CNN with BatchNorm, N = 10": Case(convolutional, 10, 0.3, weighting="uniform"),
    "ResNet-8, N = 8": Case(resnet8, 8),
    "LoRA transformer, N = 8": Case(Transformer, 8, exchanged="lora_", rate=0.05),
    "MLP, accuracy, N = 10": Case(perceptron, 10, 0.1, measure="accuracy"),
}


def images(data: Path | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fashion-MNIST at half its width: images and labels to train on, and to test with."""
    found = load_dataset("fashion-mnist", DatasetRequest(np.random.default_rng(0), 1, data))
    tensors = []
    for part in (found.train, found.test):
        x = torch.as_tensor(np.asarray(part.features), dtype=torch.float32).reshape(-1, 1, 28, 28)
        tensors += [F.avg_pool2d(x, 2), torch.as_tensor(np.asarray(part.labels)).long()]
    return tensors[0], tensors[1], tensors[2], tensors[3]


def trained(
    module: nn.Module, state: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, case: Case, n_steps: int
) -> dict[str, torch.Tensor]:
    """The model after some steps of stochastic gradient descent."""
    module.load_state_dict(state)
    module.train()
    named = [(name, p) for name, p in module.named_parameters() if case.exchanged is None or case.exchanged in name]
    optimiser = torch.optim.SGD([p for _, p in named], lr=case.rate, momentum=0.5)
    for _ in range(n_steps):
        some = torch.randint(len(x), (32,))
        optimiser.zero_grad()
        F.cross_entropy(module(x[some]), y[some]).backward()
        optimiser.step()
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def game_of(case: Case, n_samples: int, data: Path | None, seed: int) -> tuple[ModelGame, NDArray[np.int64]]:
    """The game of a round after some others, and the labels of its test samples."""
    x, y, test_x, test_y = images(data)
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    module, n = case.make(), case.n_clients
    shares = rng.dirichlet([case.concentration] * 10, n)  # (n, 10)
    sizes = rng.integers(100, 800, n)
    held = []
    for share, size in zip(shares, sizes, strict=True):
        labels = rng.choice(10, size, p=share)
        held.append([int(rng.choice(np.flatnonzero(y.numpy() == label))) for label in labels])
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    if case.exchanged is not None:  # a module that was trained before, on other images
        state = trained(module, state, 1 - x[:5000], y[:5000], Case(case.make, n, rate=0.1), 300)
    models: list[dict[str, torch.Tensor]] = []
    before = state
    for _ in range(case.n_rounds + 1):
        before = state if not models else _mean(models, sizes / sizes.sum())
        models = [trained(module, before, x[some], y[some], case, 10) for some in held]
    if case.exchanged is not None:
        module.load_state_dict(before)
        before, *models = [{k: v for k, v in m.items() if "lora_" in k} for m in (before, *models)]
    which = rng.permutation(len(test_x))[:n_samples]
    task = Task(module.eval(), test_x[which], test_y[which], exchanged=case.exchanged)
    weights = {"uniform": np.ones(n), "samples": sizes.astype(float), "fixed": sizes / sizes.sum()}[case.weighting]
    round_ = Round(RoundEntry(0, 0, "", ""), before, dict(enumerate(models)), {})
    oracle = LoopOracle(task, case.measure)
    return ModelGame(oracle, round_, np.arange(n), weights, case.weighting), test_y[which].numpy()


def _mean(models: Sequence[dict[str, torch.Tensor]], shares: Array) -> dict[str, torch.Tensor]:
    pairs = list(zip(shares.tolist(), models, strict=True))
    return {
        name: sum((share * model[name] for share, model in pairs), torch.zeros(())).to(like.dtype)
        for name, like in models[0].items()
    }


class KeptGame(ModelGame):
    """A game whose coalitions were all evaluated once: the outputs, (2^n, n_samples, …)."""

    def keep(self) -> None:
        n_samples = len(self.oracle.task.labels)
        rows = coalitions_of(self.clients, len(self.clients))
        kept = torch.stack(list(super().outputs(rows, [np.arange(n_samples)] * len(rows))))
        self.all_outputs = kept

    def outputs(self, coalitions: NDArray[np.bool_], which: Sequence[NDArray[np.int64]]) -> Iterator[torch.Tensor]:
        places = coalitions @ (1 << np.arange(len(self.clients)))
        for place, samples in zip(places.tolist(), which, strict=True):
            yield self.all_outputs[place][torch.from_numpy(samples)]

    def by_sample(self) -> Array:
        """(2^n, n_samples): the utility of every coalition on every sample; they add up to the utility."""
        task = self.oracle.task
        criterion = task.criterion(self.oracle.measure)
        scores = torch.stack([criterion.of(z, task.labels) for z in self.all_outputs]).double().numpy()
        scores = scores if criterion.is_better_higher else -scores
        return np.asarray((scores - scores[0]) / len(task.labels))


@dataclass
class ToPrecision:
    """Stops at a Monte Carlo error of `aim` times the test set's, of this round alone."""

    aim: float
    said: float = 0.0
    test: Any = None

    def __call__(self, found: Estimate) -> bool:
        from fedworth.games.effort import test_covariance

        sampling = np.diag(found.covariance)
        self.test = test_covariance(found.by_batch, found.batch_sizes, found.covariance)
        self.said = float(np.sqrt(sampling.mean() / max(np.diag(self.test).mean(), 1e-300)))
        return self.said <= self.aim


def other_passes(errors_at: Callable[[int], float], n_clients: int) -> str:
    """The passes that another estimator takes to a true ρ of 1/4, by doubling and interpolation; at most all."""
    n, before, most = 2 * n_clients, (0, np.inf), 2**n_clients - 1
    while n < most:
        found = errors_at(n)
        if found <= AIM:
            low, high = before
            if not np.isfinite(high):
                return f"≤ {n:,}"
            part = np.log(high / AIM) / np.log(high / found)
            return f"{round(low * (n / low) ** part):,}"
        before, n = (n, found), 2 * n
    return f"> {most:,}"


def kernel_shap(utilities: Array, n_passes: int, seed: int) -> Array:
    """shapiq's KernelSHAP, with pairs of complements."""
    import shapiq

    n = len(utilities).bit_length() - 1
    places = 1 << np.arange(n)
    made = shapiq.KernelSHAP(n=n, random_state=seed, pairing_trick=True)
    with warnings.catch_warnings(action="ignore"):
        found = made.approximate(n_passes, lambda rows: utilities[np.asarray(rows, dtype=np.int64) @ places])
    return np.array([found[(k,)] for k in range(n)])


def measure(
    name: str, n_samples: int, n_seeds: int, data: Path | None, seed: int, first: int, rivals: bool
) -> list[float]:
    """One row; returns every client's t of the mean error."""
    game, _ = game_of(CASES[name], n_samples, data, seed)
    game = KeptGame(game.oracle, game.round_, game.clients, game.weights, game.weighting)
    game.keep()
    n, utilities = len(game.clients), game.by_sample()  # (2^n, n_samples)
    of_samples = shapley_values(np.ascontiguousarray(utilities.T))  # (n_samples, n)
    true, totals = of_samples.sum(axis=0), utilities.sum(axis=1)
    test = float(np.sqrt(np.mean(of_samples.var(axis=0, ddof=1) * n_samples)))  # rms standard error of the sums
    off, said, passes, held, errors, wide = [], [], [], [], [], []
    for k in range(first, first + n_seeds):
        stop = ToPrecision(AIM)
        found = ensemble_shapley(game, stream(seed, "benchmark", k), stop).shapley
        off.append(found.totals - true)
        said.append(stop.said)
        errors.append(np.sqrt(np.diag(found.sampling_covariance)))
        passes.append(found.n_evaluations - 1)  # the global model has one in every estimator
        counts = np.random.default_rng([seed, k]).multinomial(n_samples, np.full(n_samples, 1 / n_samples), N_TEST_SETS)
        spread = counts @ of_samples - true  # (N_TEST_SETS, n)
        held.append(np.abs(off[-1] + spread) <= 1.96 * np.sqrt(np.diag(found.sampling_covariance + stop.test)))
        wide.append(np.diag(stop.test).mean() / test**2)
    rho = float(np.sqrt(np.mean(np.square(off)))) / test
    bias = np.abs(np.mean(off, axis=0)) / np.maximum(np.std(off, axis=0, ddof=1) / np.sqrt(n_seeds), 1e-12)
    ratio = float(np.sqrt(np.mean(np.square(off)) / np.mean(np.square(errors)))) if np.mean(errors) > 1e-12 else np.nan

    def by(estimator: Callable[[int, int], Array]) -> Callable[[int], float]:
        return lambda m: float(np.sqrt(np.mean([(estimator(m, k) - true) ** 2 for k in range(n_seeds)]))) / test

    class Lookup:
        clients, n_blocks = game.clients, 1

        def utilities(self, coalitions: NDArray[np.bool_]) -> Array:
            return np.asarray(totals[coalitions @ (1 << np.arange(n))][:, None])

    def permutations(m: int, k: int) -> Array:
        orders = draw_permutations(game.clients, max(2, round(m / (n - 1))), rng=np.random.default_rng([seed, k]))
        return permutation_shapley(Lookup(), orders).totals

    row = [name, f"{2**n - 1:,}", f"{np.mean(passes):.0f}", f"{rho:.2f}", f"{np.mean(said):.2f}", f"{ratio:.2f}"]
    row += [f"{bias.max():.1f}", f"{np.mean(held):.0%}", other_passes(by(permutations), n) if rivals else ""]
    try:
        row.append(other_passes(by(lambda m, k: kernel_shap(totals, m, k)), n) if rivals else "")
    except ImportError:
        row.append("")
    print("| " + " | ".join(row) + " |", flush=True)
    print(f"{name}: stated variance of the test set over the exact one {np.mean(wide):.2f}", file=sys.stderr)
    return [float(t) for t in bias]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CASES))
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDWORTH_DATA"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed of the draws")
    parser.add_argument("--alone", action="store_true", help="without other estimators")
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="of the federations")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| round | enumeration | passes | true ρ | said ρ | error / said | bias | held | permutations | KernelSHAP |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    found: list[float] = []
    for name in given.names or CASES:
        found += measure(name, given.samples, given.seeds, given.data, given.seed, given.first, not given.alone)
    chance = 2 * stdtr(given.seeds - 1, -max(found))  # of one client
    print(
        f"\nThe largest |t| of {len(found)} clients is {max(found):.1f}; without bias one as large has the probability"
    )
    print(f"{1 - (1 - chance) ** len(found):.2f}, if clients are independent.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
