"""One round as a game: which members play, what a coalition of them measures, and what its models look like nearby.

In: an oracle, a round's models, the members and what each counts. Out: utilities of coalitions; and around the mean of
all members, w = m + x (w_i − m), utilities, outputs and the slope, which is what a surrogate of the game is made of.

A point of the ray from the mean towards client i is the average of the client and of the mean, counted 1/x − 1 times.
So the oracle measures it as any coalition, with the mean as one more client of the round.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from fedworth.arrays import Floats, Indices, Memberships, Utilities
from fedworth.errors import UsageError
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Weighting
from fedworth.oracle.batches import Batch, Measured
from fedworth.oracle.fitting import fitted
from fedworth.oracle.oracle import Oracle, TaskOracle, batch_size, mix
from fedworth.oracle.recheck import checked
from fedworth.oracle.server import RuleOracle
from fedworth.oracle.weighting import Mixtures, mixtures
from fedworth.task.losses import Criterion
from fedworth.task.task import Task
from fedworth.threads import fitting_threads

RAYS = (0.5, 0.25, 0.125)
"""Where rays are measured, beside their ends."""

MEANS = 2.0 ** np.arange(len(RAYS))
"""What the mean counts as a client, the first time, the second and the third, where a member counts 1."""

MOST_SAMPLES = 128
"""Test samples that outputs are taken of: they shape the surrogate, not what is estimated."""


@dataclass(frozen=True)
class RoundGame:
    """A round among some members, whose coalitions are averages of their models."""

    oracle: Oracle
    round_: Round
    members: Indices  # (n,)
    weights: Floats  # (n_clients,), from `round_weights`
    weighting: Weighting
    clients: tuple[str, ...] = ()  # their names; without, an error speaks of positions
    _checked: list[Measured] = field(default_factory=list, init=False, repr=False)

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def has_surrogate(self) -> bool:
        """Whether rays and pairs describe it: coalitions are averages, and what is measured is smooth."""
        if self.weighting == "fixed" or isinstance(self.oracle, RuleOracle) or not isinstance(self.oracle, TaskOracle):
            return False
        return isinstance(self.oracle.task, Task) and self.criterion.is_smooth

    def __call__(self, coalitions: Memberships) -> Utilities:
        """The utilities of coalitions of the members, (n_coalitions, n); of the first that are asked for, some are
        measured again by the plain loop."""
        rows = self._rows(coalitions, len(self.weights))
        found = self.oracle.utilities(self.round_, mixtures(rows, self.weights, self.weighting)).sum(axis=1)
        return found if self._checked else self._first(rows, found)

    def with_rays(self, coalitions: Memberships) -> tuple[Utilities, Utilities]:
        """The utilities of coalitions, as a call gives them, and the `rays`; in one go where all members weigh the
        same, since points of rays are then averages of the same models and the mean."""
        own = self.weights[self.members]
        if np.ptp(own) > 0:
            return self(coalitions), self.rays()
        rays, rows = self._ray_rows, self._rows(coalitions, len(self.weights))
        both = np.concatenate([rays, self._rows(coalitions, rays.shape[1])])
        weights = own[0] * np.concatenate([np.ones(len(self.weights)), MEANS])
        found = self.oracle.utilities(self._with_means, mixtures(both, weights, self.weighting)).sum(axis=1)
        return self._first(rows, found[len(rays) :]), found[: len(rays)].reshape(len(RAYS), self.n)

    def _first(self, rows: Memberships, utilities: Utilities) -> Utilities:
        """Utilities that were asked for first, a few of them measured again by the plain loop."""
        names = self.clients or tuple(map(str, range(len(self.weights))))
        where = (self.round_.entry.round_index, np.arange(len(rows)))
        batch = Batch(*where, rows, self.weights, self.weighting, names)
        self._checked.append(checked(self.oracle, self.round_, batch, utilities))
        return self._checked[-1].utilities

    def _rows(self, coalitions: Memberships, n_columns: int) -> Memberships:
        """Coalitions of members as coalitions of all that have a model."""
        rows = np.zeros((len(coalitions), n_columns), dtype=bool)
        rows[:, self.members] = coalitions
        return rows

    @property
    def shares(self) -> Floats:
        """(n + 1, n): row s is what client i counts in a coalition of s, the others weighing what they do on average.

        x_i(s) = a_i / (a_i + (s − 1) · mean of the others' a)          1/s where all weigh the same
        """
        own = self.weights[self.members]  # a, (n,)
        others = (own.sum() - own) / max(self.n - 1, 1)
        sizes = np.arange(self.n + 1)[:, None]
        return np.asarray(own / np.where(sizes > 0, own + (sizes - 1) * others, np.inf))

    @cached_property
    def _task(self) -> Task:
        assert isinstance(self.oracle, TaskOracle)  # who asks has seen that there is a surrogate
        return self.oracle.task

    @cached_property
    def _fitted(self) -> Round:
        return fitted(self.round_, self._task)

    @cached_property
    def _around(self) -> Round:
        """The round as seen from its mean: the mean of all members stands for the global model."""
        round_ = self._fitted
        models = {**round_.client_models, **round_.apart_models}
        coefficients = np.zeros(len(self.weights))
        coefficients[self.members] = self.weights[self.members] / self.weights[self.members].sum()
        mean = mix(round_.global_model, models, coefficients, 0.0)
        return replace(round_, global_model=mean, client_models={k: models[k] for k in self.members.tolist()})

    def rays(self) -> Utilities:
        """(3, n): the utility of m + x (w_i − m) at x = 1/2, 1/4, 1/8, towards each member.

        The mean comes in as three clients that count 1, 2 and 4 where a member counts 1: with the first of them the
        member has 1/2 of the average, with two 1/4, with three 1/8.
        """
        weights = np.concatenate([np.ones(len(self.weights)), MEANS])
        found = self.oracle.utilities(self._with_means, Mixtures(self._ray_rows, weights, from_global=False)).sum(
            axis=1
        )
        return np.asarray(found.reshape(len(RAYS), self.n))

    @property
    def _ray_rows(self) -> Memberships:
        """(3 n, n_clients + 3): the points of the rays as coalitions of members and means."""
        n_clients, n = len(self.weights), self.n
        rows = np.zeros((len(RAYS), n, n_clients + len(RAYS)), dtype=bool)
        rows[:, np.arange(n), self.members] = True
        for place in range(len(RAYS)):
            rows[place:, :, n_clients + place] = True
        return rows.reshape(len(RAYS) * n, -1)

    @property
    def _with_means(self) -> Round:
        """The round of the members and of the mean, three times."""
        means = {len(self.weights) + place: self._around.global_model for place in range(len(RAYS))}
        return replace(self._fitted, client_models={**self._around.client_models, **means}, apart_models={})

    @cached_property
    def criterion(self) -> Criterion:
        """What the oracle measures."""
        assert isinstance(self.oracle, TaskOracle)
        return self._task.criterion(self.oracle.measure)

    def slopes(self) -> Floats | None:
        """(n,): how steeply each ray rises at the mean, −∇ℓ(m)·(w_i − m), by one backward pass; None if what is
        measured has no slope, as accuracy."""
        return self._slopes(self._around, self.criterion) if self.criterion.is_smooth else None

    def first_slopes(self) -> Floats:
        """(n,): how steeply the loss falls from the global model towards each member, −∇ℓ(w^t)·(w_i − w^t)."""
        loss = self._task.judged_by.criterion
        if not loss.is_smooth:
            raise UsageError(f"loss {loss.name!r} has no slope that could be taken; choose a method that needs none")
        return self._slopes(self._fitted, loss)

    def _slopes(self, round_: Round, criterion: Criterion) -> Floats:
        varying = {k: t for k, t in round_.global_model.items() if t.is_floating_point()}
        leaves = {k: t.detach().to(self._device).clone().requires_grad_() for k, t in varying.items()}
        with fitting_threads(self._task.module), torch.enable_grad():
            outputs = self._task.outputs({**round_.global_model, **leaves})
            rising = criterion.quality(outputs, self._task.labels)
            found = torch.autograd.grad(rising, list(leaves.values()), allow_unused=True)
        gradient = {k: g.cpu() for k, g in zip(leaves, found, strict=True) if g is not None}
        return np.array([_product(gradient, round_.client_models[k], varying) for k in self.members.tolist()])

    def outputs(self, x: float) -> Iterator[torch.Tensor]:
        """For the mean, then for each member's ray at x: the outputs of some test samples, (n_samples, n_classes)."""
        around = self._around
        yield self._of_some(around.global_model)
        for k in self.members.tolist():
            yield self._of_some(_between(around.global_model, around.client_models[k], x))

    def _of_some(self, model: Model) -> torch.Tensor:
        with fitting_threads(self._task.module), torch.inference_mode():
            return self._task.outputs(model, self._some)

    @property
    def labels(self) -> torch.Tensor:
        """The labels of the samples that outputs are taken of."""
        return self._task.labels[self._some]

    @cached_property
    def _some(self) -> slice:
        """Test samples spread over the whole test set, MOST_SAMPLES at most, fewer if they have many outputs."""
        most = min(MOST_SAMPLES, batch_size(self._task, self._around.global_model))
        return slice(None, None, -(-len(self._task.labels) // most))

    @property
    def _device(self) -> torch.device:
        return self._task.device


def _product(gradient: Model, model: Model, origin: Model) -> float:
    """gradient · (model − origin), summed in float64."""
    moved = {name: model[name].double() - origin[name].double() for name in gradient}
    return sum(float((g.double() * moved[name]).sum()) for name, g in gradient.items())


def _between(mean: Model, other: Model, x: float) -> Model:
    """mean + x (other − mean); whole numbers stay the mean's."""
    return {name: torch.lerp(t, other[name], x) if t.is_floating_point() else t for name, t in mean.items()}
