"""The fast oracle: what coalitions share is evaluated once.

In: a task, then round after round its models and coalitions. Out: a utility for each coalition and block. The module
and the tensors that vary in a round decide the route:

    chain   the module ends in linear layers, and only these vary: outputs of the first one are mixed (`chain`)
    module  the module itself, without the parts that are constant or affine (`loop`)
    loop    the plain loop, where nothing else agrees with it

The first call on a round compares a few coalitions with the plain loop. Where they disagree, the plain loop measures
all of them, and `describe` says so.
"""

import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fedworth.arrays import Floats, Indices
from fedworth.errors import UsageError
from fedworth.ledger.ledger import Round
from fedworth.names import Measure
from fedworth.oracle.fast.calls import Call, Layer, Parts, find_chain, find_parts, observe
from fedworth.oracle.fast.chain import Chain
from fedworth.oracle.fast.loop import Loop
from fedworth.oracle.fast.models import RoundModels, Samples, merge_duplicates
from fedworth.oracle.oracle import (
    LoopOracle,
    criteria_of,
    fitted,
    in_columns,
    n_counted,
    plain_utilities,
    refuse_unfit,
    refuse_unusable,
)
from fedworth.oracle.weighting import Mixtures
from fedworth.task.modules import UtilityModule, copied
from fedworth.task.samples import rows, tensors_of
from fedworth.task.task import Task
from fedworth.threads import one_torch_thread

NOTHING_YET = "nothing measured yet"
N_SEEN = 16
"""Samples that a module is observed on."""

N_CHECKED = 4
"""Coalitions that are compared with the plain loop when a route is new; on later rounds it is one."""

BLOCK_SAMPLES, MOST_BLOCKS = 128, 32
"""The comparison is on blocks with at least this many samples together; a test set without blocks is divided."""

TOLERANCE, ROUNDING = 1e-3, 3e-6
"""How far the plain loop may be: this part of a utility, and this part of the scores before and after."""

TIED = 1e-5
"""Two classes tie if their outputs differ by at most this part of the largest, or of the global model's largest."""

MOST_BYTES = 1 << 31
"""Models and kept outputs that are held in memory."""

LARGE_MODEL = 1 << 24
"""Bytes of the tensors that vary from which a model is large: it is not held once for each client, unless the module's
parts share much between coalitions. The plain loop takes no longer, and the memory of one model."""

BATCH = 1 << 17
"""Numbers in the largest activation of a batch: half a MB, so that copies of it stay in the cache."""


@dataclass(frozen=True)
class PlainLoop:
    """The plain loop, and why nothing faster is used."""

    reason: str

    def __str__(self) -> str:
        return f"the plain loop: {self.reason}"


Route = Chain | Loop | PlainLoop


class FastOracle:
    """Measures utilities by the fastest route that agrees with the plain loop.

    Args:
        task: What models are judged by.
        measure: `loss`, or a measure of the task such as `accuracy`.
        n_threads: The number of threads; one per processor if it is not given.
        also: Other measures, which are taken in the same forward pass: a column of the utilities each.

    Example:
        oracle = fedworth.FastOracle(task)
        print(oracle.describe())
    """

    def __init__(
        self, task: Task, measure: Measure = "loss", n_threads: int | None = None, also: tuple[Measure, ...] = ()
    ) -> None:
        if n_threads is not None and n_threads < 1:
            raise UsageError(f"n_threads is {n_threads}, expected 1 or more")
        self.task, self.measure, self.also, self.n_blocks = task, measure, also, task.n_blocks
        self.n_threads = n_threads or n_processors()
        self._criteria = criteria_of(task, measure, also)
        self._is_whole = any(criterion.is_whole for criterion in self._criteria)
        self._plain = LoopOracle(task, measure, also)
        self._module = copied(task.module).eval().requires_grad_(False)
        blocks = _blocks(task, is_whole=self._is_whole)
        n_blocks = max(task.n_blocks, int(blocks.max()) + 1)
        self._samples = Samples(task.inputs, task.labels, blocks.to(task.device), n_blocks)
        self._n_compared, self._is_fit = 0, False
        self._routes: dict[frozenset[str], Route] = {}
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()  # routes and their copies of the module belong to one call at a time
        self._last: tuple[weakref.ref[Round], RoundModels] | None = None

    def __reduce__(self) -> tuple[type["FastOracle"], tuple[Task, str, int, tuple[str, ...]]]:
        """What another process needs; it finds its own routes."""
        return FastOracle, (self.task, self.measure, self.n_threads, self.also)

    def describe(self) -> str:
        """The routes taken so far, one per line, and how many coalitions each has measured."""
        return "\n".join(f"{route} ({n:,} coalitions)" for route, n in self._counts.items()) or NOTHING_YET

    def utilities(self, round_: Round, mixtures: Mixtures) -> Floats:
        """(n_mixtures, n_columns): the utility of each mixture on each block of samples, then by other measures."""
        with self._lock, one_torch_thread(), torch.inference_mode():
            found = self._utilities(round_, mixtures)
        if not isinstance(found, PlainLoop):
            return found
        self._counts[str(found)] += len(mixtures)
        return self._plain.utilities(round_, mixtures)

    def outputs(self, round_: Round, mixtures: Mixtures, which: Sequence[Indices]) -> Iterator[torch.Tensor]:
        """The outputs of each mixture on its own samples, given by their numbers."""
        return self._plain.outputs(round_, mixtures, which)

    def _utilities(self, round_: Round, mixtures: Mixtures) -> Floats | PlainLoop:
        """The utilities, or why only the plain loop will do."""
        present = np.flatnonzero(mixtures.memberships.any(axis=0))
        models, is_new = self._models(round_, mixtures, present)
        if isinstance(models, PlainLoop):
            return models
        key, is_first = models.varying, models.varying not in self._routes
        if is_first and models.n_bytes > LARGE_MODEL:  # before they are stacked
            self._routes[key] = self._route(models)
        if models.n_bytes > LARGE_MODEL and isinstance(known := self._routes[key], PlainLoop):
            return known
        wanted, places = merge_duplicates(models, mixtures.among(present))
        if len(wanted) == 1:  # every coalition keeps the global model
            return np.zeros((len(mixtures), self.n_blocks + len(self.also)))
        route = self._routes[key] = self._routes.get(key) or self._route(models)
        if isinstance(route, PlainLoop):
            return route
        try:
            scores = route.totals(
                models, wanted, self.n_threads
            )  # (n_wanted, n_criteria, n_blocks), global model first
        except RuntimeError as error:  # a view of channels-last images, for example
            self._routes[key] = plain = PlainLoop(f"the route fails with {str(error).partition(chr(10))[0]!r}")
            return plain
        scores /= n_counted(self._criteria, self.task.labels)
        utilities = scores - scores[0]  # more blocks than the task's if it has none
        is_broken = wanted.memberships[:, ~models.is_finite].any(axis=1)
        usable = utilities[~is_broken] if is_broken.any() else utilities
        if not np.isfinite(usable).all():  # an outlying model overflows: it must not spoil others
            return PlainLoop("some outputs are not finite")
        utilities[is_broken] = np.nan
        if (is_first or is_new) and not self._agrees(round_, mixtures, utilities, scores, places, is_first):
            self._routes[key] = plain = PlainLoop(f"it disagrees with {route}; please report this")
            return plain
        self._counts[str(route)] += len(mixtures)
        if self.task.blocks is None:
            utilities = utilities.sum(axis=2, keepdims=True)
        return in_columns(utilities)[places]

    def _models(self, round_: Round, mixtures: Mixtures, present: Indices) -> tuple[RoundModels | PlainLoop, bool]:
        """The models of a round, or why they are not used, and whether the last call was for another round."""
        is_new = self._last is None or self._last[0]() is not round_
        if not is_new and self._last is not None and self._last[1].clients == present.tolist():
            return self._last[1], False
        own = fitted(round_, self.task)
        if not self._is_fit:  # the module and the loss stay the same, round after round
            refuse_unfit(self.task, self._criteria, own.global_model)
            self._is_fit = True
        refuse_unusable(self.task, own, mixtures)
        n_bytes = len(present) * sum(tensor.numel() * tensor.element_size() for tensor in own.global_model.values())
        if n_bytes > MOST_BYTES:
            return PlainLoop("the round's models are too large to hold in memory"), is_new
        if self._is_tied(own, present):
            return PlainLoop("rounding decides which class a client's model prefers"), is_new
        models = RoundModels(own, present.tolist(), self.task.device)
        self._last = weakref.ref(round_), models
        return models, is_new

    def _is_tied(self, round_: Round, present: Indices) -> bool:
        """Whether classes tie in some client's outputs, so that rounding decides which one is counted as right.

        A client that sends the same number everywhere, or next to nothing, does that; then only the plain loop is sure
        to round as the plain loop does.
        """
        over = self.task.judged_by.over_classes
        if over is None or all(criterion.is_smooth for criterion in self._criteria):
            return False
        models = {**round_.client_models, **round_.apart_models}
        some = slice(0, min(N_SEEN, self.task.batch_size))
        with torch.inference_mode():
            usual = self.task.outputs(round_.global_model, some).double()
            if usual.ndim <= over or usual.shape[over] < 2:
                return False
            for client in [k for k in present.tolist() if k in models]:
                outputs = self.task.outputs(models[client], some).double()
                first, second = outputs.topk(2, dim=over).values.unbind(over)
                largest = torch.maximum(outputs.abs().amax(dim=over), usual.abs().amax(dim=over))
                if int((first - second <= TIED * largest).sum()) > 1:
                    return True
        return False

    def _route(self, models: RoundModels) -> Route:
        """The fastest route that two forward passes of a few samples suggest."""
        if isinstance(self.task.module, UtilityModule):
            return PlainLoop("its utility is a function of the user")
        if any(
            tensor.dtype not in (torch.float32, torch.float64)
            for tensor in (models.origin[name] for name in models.floats)
        ):
            return PlainLoop("half precision rounds every model differently")
        # All activations are held at once, which of a large model take a hundred MB a sample
        n_seen = 2 if models.n_bytes > LARGE_MODEL else min(N_SEEN, max(2, self.task.batch_size))
        which = torch.from_numpy(np.unique(np.linspace(0, len(self._samples) - 1, n_seen).astype(np.int64)))
        few = self._samples.at(which.to(self.task.device))
        before = {name: tensor.clone() for name, tensor in self._module.state_dict().items()}
        try:
            seen = observe(self._module, models, few.inputs)
        except (RuntimeError, ValueError, IndexError) as error:
            return PlainLoop(f"the module fails on a few samples ({str(error).partition(chr(10))[0]})")
        if any(not torch.equal(tensor, before[name]) for name, tensor in self._module.state_dict().items()):
            return PlainLoop("the module changes its own tensors as it is evaluated")
        chain = find_chain(seen, models)
        if chain is not None and not self._is_whole and seen.outputs.ndim == 2:
            return Chain(self._module, *chain, self._samples, self._criteria)
        parts = find_parts(seen)
        if self._kept_bytes(parts, seen.noisy, len(models.clients), len(few)) > MOST_BYTES:
            parts = Parts()
        if models.n_bytes > LARGE_MODEL and not parts.constant and not _is_mostly_affine(parts, models):
            return PlainLoop("its parts share little between coalitions, and models are large")
        images = self.task.device.type == "cpu" and all(x.ndim == 4 for x in tensors_of(self.task.inputs))
        batch = int(2 ** np.clip(np.log2(BATCH / seen.largest).round(), 5 if images else 7, 10))
        batch = min(batch, self.task.batch_size)
        if self._is_whole and len(self._samples) * seen.largest > MOST_BYTES // 16:
            return PlainLoop("a measure needs all outputs at once")
        return Loop(self._module, parts, self._samples, self._criteria, batch, images=images)

    def _kept_bytes(self, parts: Parts, calls: list[Call], n_clients: int, n_few: int) -> int:
        """What kept outputs of the whole test set take."""
        sizes = {call.name: call.given.numel() * 4 // n_few for call in calls}
        each: int = sum(sizes[name] for name, is_used in parts.constant.items() if is_used)
        each += sum(sizes[name] for name in parts.affine) * (1 + n_clients)
        return each * len(self._samples)

    def _agrees(
        self, round_: Round, mixtures: Mixtures, found: Floats, scores: Floats, places: Indices, is_first: bool
    ) -> bool:
        """Whether the plain loop gives the same for a few coalitions on a few blocks of samples, others in each round.

        The coalitions are the largest one and, if the route is new, some others. A measure that is not a mean over
        samples is compared on the whole test set.
        """
        largest = int(np.argmax(mixtures.memberships.sum(axis=1)))
        others = np.linspace(0, len(mixtures) - 1, N_CHECKED - 1).astype(int).tolist() if is_first else []
        chosen = np.unique([largest, *others])
        chosen = chosen[np.isfinite(found[places[chosen]]).all(axis=(1, 2))]
        counted = self._counted_blocks
        if len(chosen) == 0 or not counted:
            return True
        found, after, parts, task = found[places[chosen]], scores[places[chosen]], np.ones(1), self.task
        if not self._is_whole:
            blocks, parts = counted[self._n_compared % len(counted)]
            self._n_compared += 1
            which = torch.nonzero(torch.isin(self._samples.blocks, blocks))[:, 0]
            task = replace(task, inputs=rows(task.inputs, which), labels=task.labels[which], groups=None, blocks=None)
            found, after = (
                by_block[:, :, blocks.cpu().numpy()].sum(axis=2, keepdims=True) for by_block in (found, after)
            )
        plain = plain_utilities(task, self._criteria, fitted(round_, self.task), mixtures.rows(chosen))
        expected = parts * plain  # (n_chosen, n_columns)
        sizes = (np.abs(after) + np.abs(after - found)).sum(axis=2)  # after and before, (n_chosen, n_criteria)
        flips = [0.0 if criterion.is_smooth else 2 / len(self.task.labels) for criterion in self._criteria]
        allowed = ROUNDING * sizes + flips  # two samples may be decided by the last bit
        allowed = np.repeat(allowed, [found.shape[2], *[1] * len(self.also)], axis=1) + TOLERANCE * np.abs(expected)
        return bool((np.abs(in_columns(found) - expected) <= allowed + 1e-12).all())

    @cached_property
    def _counted_blocks(self) -> list[tuple[torch.Tensor, Floats]]:
        """Groups of blocks with `BLOCK_SAMPLES` samples or more, and their part of all counted labels (n_criteria,)."""
        criteria, labels, blocks = self._criteria, self.task.labels, self._samples.blocks
        n_groups = min(MOST_BLOCKS, -(-len(labels) // BLOCK_SAMPLES))
        groups = torch.arange(self._samples.n_blocks, device=blocks.device) % n_groups
        whole = n_counted(criteria, labels)
        listed = [torch.nonzero(groups == k)[:, 0] for k in range(n_groups)]
        parts = [(some, (n_counted(criteria, labels[torch.isin(blocks, some)]) / whole)[:, 0]) for some in listed]
        return [(some, part) for some, part in parts if (part > 0).all()]


def _is_mostly_affine(parts: Parts, models: RoundModels) -> bool:
    """Whether most of the numbers that vary belong to affine parts, which are evaluated once per client."""
    layers = [Layer.of(name) for name in parts.affine]
    affine = {name for layer in layers for name in (layer.weight, layer.bias)}
    sizes = {name: models.origin[name].numel() for name in models.floats}
    return 2 * sum(n for name, n in sizes.items() if name in affine) > sum(sizes.values())


def _blocks(task: Task, *, is_whole: bool) -> torch.Tensor:
    """(n_samples,): the block of each sample; a task without blocks gets some, unless its measure needs all samples."""
    if task.blocks is not None:
        return torch.as_tensor(task.blocks).long()
    n = len(task.labels)
    return torch.arange(n) // (n if is_whole else max(BLOCK_SAMPLES, -(-n // MOST_BLOCKS)))


def n_processors() -> int:
    """How many processors this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
