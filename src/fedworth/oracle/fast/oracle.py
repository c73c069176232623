"""The fast oracle: the same utilities as the plain loop's, for a small part of its work.

In: a task, then round after round its models and the coalitions' mixtures. Out: one utility a mixture. The
module decides the route (`routes`), the round which tensors vary: those equal in all models count as constants, and
what the test samples alone make of them is kept from round to round. `describe` says which routes were taken and why.

A utility is the same to the last bit whatever else is measured with it, in whatever order, on however many threads: the
way it is measured, and every sum, depends on the coalition's own members, the global model and the test set alone.
Torch's own threads are kept out of it; only the plain route leaves them to convolutions, whose last bits may then
depend on how many there are.
"""

import copy
import os
import threading
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedworth.arrays import Utilities
from fedworth.errors import UsageError
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Measure
from fedworth.oracle.fast.affine import SampleBatch, qualities, quality, sample_batches
from fedworth.oracle.fast.costs import Cost, Kind, Spent, estimate
from fedworth.oracle.fast.heads import head_losses, tiled_batches
from fedworth.oracle.fast.kernels.tiles import NotFiniteError
from fedworth.oracle.fast.mixing import RoundModels, channels_last, round_models
from fedworth.oracle.fast.routes import KernelRoute, LoopRoute, PlainRoute, Route, Routes, SectionsRoute
from fedworth.oracle.fast.sections import constant_tensors
from fedworth.oracle.fast.traits import plain_logits
from fedworth.oracle.fast.wanted import Coefficients, Part, wanted_parts
from fedworth.oracle.fitting import fitted
from fedworth.oracle.oracle import LoopOracle, together
from fedworth.oracle.weighting import Mixtures
from fedworth.task.losses import CROSS_ENTROPY
from fedworth.task.task import Task
from fedworth.threads import in_order, one_torch_thread

KEPT_BYTES = 1 << 30
"""What constants of the test set may take from one round to the next."""

NOTHING_YET = "nothing measured yet"


class FastOracle:
    """Measures utilities by the fastest way that agrees with the plain loop.

    Args:
        task: What models are judged by.
        measure: `loss`, or a measure of the task such as `accuracy`.
        n_threads: How many threads; one a processor if it is not given.

    Example:
        oracle = fedworth.FastOracle(task)
        print(oracle.describe())
    """

    def __init__(self, task: Task, measure: Measure = "loss", n_threads: int | None = None) -> None:
        if n_threads is not None and n_threads < 1:
            raise UsageError(f"n_threads is {n_threads}, expected 1 or more")
        self.task = task
        self.measure = measure
        self._criterion = task.criterion(measure)
        self.n_threads = n_threads or n_processors()
        self._routes = Routes(task)
        self._kept: _Kept | None = None
        self._spent = Spent()
        self._before: dict[str, _Before] = {}

    def __reduce__(self) -> tuple[type["FastOracle"], tuple[Task, str, int]]:
        """What another process needs; it finds its routes for itself."""
        return FastOracle, (self.task, self.measure, self.n_threads)

    @property
    def n_blocks(self) -> int:
        """The number of blocks of test samples."""
        return self.task.n_blocks

    def describe(self) -> str:
        """The routes taken so far and why, one a line, with what they should have taken and did take."""
        lines = dict.fromkeys(f"{r.kind}: {r.why}{self._spent.said(r)}" for r in self._routes.taken())
        return "\n".join(lines) or NOTHING_YET

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """(n_mixtures, n_blocks): the utility of each mixture on each block of test samples."""
        if self.n_blocks > 1:
            return LoopOracle(self.task, self.measure).utilities(round_, mixtures)
        round_ = fitted(round_, self.task)
        utilities = np.zeros(len(mixtures))  # a coalition that leaves w^t as it is has exactly 0
        for part in wanted_parts(round_, mixtures, self.task.device):
            with one_torch_thread(), torch.inference_mode():
                found = self._of_part(part)
            if found is None:
                return LoopOracle(self.task, self.measure).utilities(round_, mixtures)
            utilities[part.places] = found
        return np.asarray(utilities / self._criterion.n_counted(self.task.labels))[:, None]

    def _of_part(self, part: Part) -> Utilities | None:
        """The utilities of a part, summed over samples; nothing if only the plain loop will do."""
        how = {"to_kernel": self._criterion is CROSS_ENTROPY, "at_once": self._criterion.is_whole}
        kinds = {size: self._routes.kinds(part.varying, size, **how) for size in np.unique(part.sizes).tolist()}
        found = np.zeros(len(part.places))
        for ways in dict.fromkeys(kinds.values()):
            alike = np.isin(part.sizes, [size for size, others in kinds.items() if others == ways])
            of_these = self._by(part.only(alike), ways)
            if of_these is None:
                return None
            found[alike] = of_these
        return found

    def _by(self, part: Part, ways: tuple[Kind, ...]) -> Utilities | None:
        """By the first of these ways that can be run; what it is too coarse for, by the next."""
        route = self._routes.route(part, ways)
        if isinstance(route, PlainRoute):
            return None
        with self._spent.noted(route, len(part.places), self._expected(route, part)):
            if not isinstance(route, KernelRoute):
                return self._by_coalition(route, part)
            found, uneven = self._by_kernel(route, part)
        if uneven.any():
            self._spent.passed_on(route, int(uneven.sum()))
            again = self._by(part.only(uneven), ways[1:])
            if again is None:
                return None
            found[uneven] = again
        return found

    def _expected(self, route: LoopRoute | SectionsRoute | KernelRoute, part: Part) -> Cost:
        """What a route should take; nothing is known of a module that has no graph."""
        if isinstance(route, LoopRoute):
            return Cost()
        size = route.batch_size
        return estimate(route.kind, route.sections, part, n_samples=len(self.task.labels), batch_size=size)

    def _by_kernel(self, route: KernelRoute, part: Part) -> tuple[Utilities, NDArray[np.bool_]]:
        """Σ over samples of loss before minus loss after, along a trie, and which of them are too coarse; NaN if some
        model's numbers are not finite."""
        models = RoundModels(part.origin, tuple(part.clients), {}, (), route.images)
        samples = self._samples(route, part.origin)
        try:
            made = head_losses(route.sections, route.head, models, part.mixtures, samples, n_threads=self.n_threads)
        except NotFiniteError:
            return np.full(len(part.places), np.nan), np.zeros(len(part.places), dtype=np.bool_)
        return np.asarray(made.losses[-1] - made.losses[:-1]), made.uneven

    def _by_coalition(self, route: LoopRoute | SectionsRoute, part: Part) -> Utilities:
        """Σ over samples of quality after minus quality before; equal mixtures are evaluated once."""
        rows, places = np.unique(part.coefficients, axis=0, return_inverse=True)  # (n_rows, n_clients)
        before = self._before.get(route.kind)
        known = before.quality if before is not None and before.serves(route, part.origin) else None
        rows = rows if known is not None else np.concatenate([rows, np.zeros((1, rows.shape[1]))])  # the global model
        models = round_models(part.origin, part.clients, part.varying, images=route.images)
        if isinstance(route, SectionsRoute):
            samples = self._samples(route, models.origin)
            found = qualities(
                route.sections, models, rows, samples, criterion=self._criterion, n_threads=self.n_threads
            )
        else:
            found = self._by_loop(route, models, rows)
        if known is None:
            found, known = found[:-1], float(found[-1])
            self._before[route.kind] = _Before(route, {n: t.clone() for n, t in part.origin.items()}, known)
        return np.asarray((found - known)[places.ravel()])

    def _by_loop(self, route: LoopRoute, models: RoundModels, rows: Coefficients) -> Utilities:
        """The module itself, coalition by coalition; it is a thread's own, as loading a model changes it."""
        own, inputs = threading.local(), self._inputs(route)
        chunks = np.split(rows, range(models.together, len(rows), models.together))

        def of_chunk(chunk: Coefficients) -> list[float]:
            if not hasattr(own, "module"):
                own.module = copy.deepcopy(self._routes.module)
            mixed = models.mixed(chunk)
            tensors = [{**models.origin, **{name: t[i] for name, t in mixed.items()}} for i in range(len(chunk))]
            return [self._quality(own.module, model, inputs, route.batch_size) for model in tensors]

        return np.concatenate(in_order(of_chunk, chunks, self.n_threads))

    def _quality(self, module: nn.Module, model: Model, inputs: torch.Tensor, size: int) -> float:
        pairs = zip(torch.split(inputs, size), torch.split(self.task.labels, size), strict=True)
        made = ((plain_logits(module, model, x), y) for x, y in pairs)
        if self._criterion.is_whole:
            return self._criterion.total(*together(made))
        return sum(quality(outputs, labels, self._criterion) for outputs, labels in made)

    def _inputs(self, route: LoopRoute | SectionsRoute | KernelRoute) -> torch.Tensor:
        inputs: torch.Tensor = self.task.inputs  # several tensors go through the plain loop
        return channels_last(inputs) if route.images else inputs

    def _samples(self, route: SectionsRoute | KernelRoute, origin: Model) -> list[SampleBatch]:
        """The test set in batches with their constants, made again only if the tensors behind them have changed."""
        if self._kept is None or not self._kept.serves(route, origin):
            made = sample_batches(route.sections, origin, self._inputs(route), self.task.labels, route.batch_size)
            made = tiled_batches(route.sections, made) if isinstance(route, KernelRoute) else made
            names = constant_tensors(route.sections)
            kept = _Kept(route, {name: origin[name].clone() for name in names if name in origin}, made)
            self._kept = kept if kept.n_bytes <= KEPT_BYTES else None
            return made
        return self._kept.samples


@dataclass(frozen=True)
class _Kept:
    """Batches with their constants, and the tensors these were made from."""

    route: Route
    tensors: Model
    samples: list[SampleBatch]

    def serves(self, route: Route, origin: Model) -> bool:
        return route is self.route and all(torch.equal(origin[name], t) for name, t in self.tensors.items())

    @property
    def n_bytes(self) -> int:
        return sum(batch.n_bytes for batch in self.samples)


@dataclass(frozen=True)
class _Before:
    """The quality of a global model, by a route: whoever asks for more of a round does not pay for it again."""

    route: Route
    origin: Model
    quality: float

    def serves(self, route: Route, origin: Model) -> bool:
        return route is self.route and all(torch.equal(origin[name], tensor) for name, tensor in self.origin.items())


def n_processors() -> int:
    """How many processors this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
