"""The module itself, coalition by coalition, without the parts that need not be evaluated each time.

A constant part is evaluated once for the test set. An affine part is evaluated once per client and mixed. What is left
is evaluated by torch in batches of a size that fits the processor's cache.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import nn

from fedworth.arrays import Floats
from fedworth.ledger.ledger import Model
from fedworth.oracle.fast.calls import Layer, Parts
from fedworth.oracle.fast.chain import MIXED, is_same
from fedworth.oracle.fast.models import RoundModels, Samples, slices
from fedworth.oracle.oracle import block_totals
from fedworth.oracle.weighting import Mixtures
from fedworth.task.losses import Criterion
from fedworth.task.modules import copied
from fedworth.task.samples import each, outputs_of
from fedworth.threads import in_order

TOGETHER = 1 << 22
"""Numbers of an affine part's outputs that are mixed at a time."""

Given = dict[str, torch.Tensor]
"""Outputs of replaced parts, by name."""


TOGETHER_MIXED = 32
"""Coalitions that are mixed by one product."""


class Loop:
    """Evaluates a module's coalitions one after the other; what is constant or affine is not evaluated again."""

    def __init__(
        self,
        module: nn.Module,
        parts: Parts,
        samples: Samples,
        criteria: Sequence[Criterion],
        batch: int,
        *,
        images: bool,
    ) -> None:
        self.module, self.parts, self.criteria, self.images = module, parts, criteria, images
        self.batch = len(samples) if any(criterion.is_whole for criterion in criteria) else batch
        if images:
            samples = Samples(each(samples.inputs, channels_last), samples.labels, samples.blocks, samples.n_blocks)
        self._batches = samples.batches(self.batch)
        self._n_blocks = samples.n_blocks
        self._replicas: list[_Replica] = []
        self._kept: tuple[Model, list[Given], list[Given]] | None = None

    def __str__(self) -> str:
        words = [f"the module in batches of {self.batch}"]
        used = [name for name, is_used in self.parts.constant.items() if is_used]
        words += [f"with {', '.join(used)} evaluated once"] if used else []
        words += [f"with mixed outputs of {', '.join(self.parts.affine)}"] if self.parts.affine else []
        return ", ".join(words)

    def totals(self, models: RoundModels, mixtures: Mixtures, n_threads: int) -> Floats:
        """(n_mixtures, n_criteria, n_blocks): the scores, summed over the samples of each block; higher is better."""
        n_numbers = sum(models.origin[name].numel() for name in models.varying)
        # The same size for any number of threads, so that bits are the same
        size = max(1, min(MIXED // max(1, n_numbers), TOGETHER_MIXED))
        parts = [mixtures.rows(np.arange(at.start, at.stop)) for at in slices(len(mixtures), size)]
        constants, entering = self._constants(models)
        affine = [self._affine(models, given) for given in entering]
        replicas: SimpleQueue[_Replica] = SimpleQueue()
        while len(self._replicas) < n_threads:
            self._replicas.append(_Replica(self.module, self.parts))
        for replica in self._replicas[:n_threads]:
            replicas.put(replica)

        def of_part(part: Mixtures) -> Floats:
            replica = replicas.get()
            try:
                return self._totals(replica, models, part, constants, affine)
            finally:
                replicas.put(replica)

        return np.concatenate(in_order(of_part, parts, n_threads))

    def _totals(
        self,
        replica: "_Replica",
        models: RoundModels,
        mixtures: Mixtures,
        constants: list[Given],
        affine: list[Given],
    ) -> Floats:
        mixed = {name: models.mixed(name, mixtures) for name in sorted(models.varying)}
        if self.images:
            mixed = {name: _images_last(tensor) for name, tensor in mixed.items()}
        coefficients = np.concatenate([np.ones((len(mixtures), 1)), mixtures.of_clients], axis=1)
        rows = range(len(mixtures))
        states = [{**models.frozen, **{name: tensor[row] for name, tensor in mixed.items()}} for row in rows]
        found = np.zeros((len(mixtures), len(self.criteria), self._n_blocks))
        for batch, constant, stacked in zip(self._batches, constants, affine, strict=True):
            for row, given in enumerate(_mixed(stacked, coefficients)):
                replica.given = {**constant, **given}
                outputs = outputs_of(replica.module, states[row], batch.inputs)
                found[row] += block_totals(self.criteria, outputs, batch.labels, batch.block_numbers, self._n_blocks)
        return found

    def _constants(self, models: RoundModels) -> tuple[list[Given], list[Given]]:
        """For each batch what constant parts give, and what enters affine parts."""
        if not self.parts.constant and not self.parts.affine:
            return [{}] * len(self._batches), [{}] * len(self._batches)
        frozen = models.frozen
        if self._kept is None or not is_same(self._kept[0], frozen):
            pairs = [self._seen(models, batch) for batch in self._batches]
            given, taken = ([pair[k] for pair in pairs] for k in (0, 1))
            self._kept = {name: tensor.clone() for name, tensor in frozen.items()}, given, taken
        return self._kept[1], self._kept[2]

    def _seen(self, models: RoundModels, batch: Samples) -> tuple[Given, Given]:
        """What constant parts give for a batch, and what affine parts take, by one forward pass."""
        given: Given = {}
        taken: Given = {}

        def note_given(name: str, _: nn.Module, __: Any, result: torch.Tensor) -> None:
            # Where only other constant parts read it, its shape is enough
            is_used = self.parts.constant[name]
            given[name] = result.clone() if is_used else result.new_full((), torch.nan).expand(result.shape)

        def note_taken(name: str, _: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            taken[name] = args[0].clone()

        part = self.module.get_submodule
        handles = [part(name).register_forward_hook(partial(note_given, name)) for name in self.parts.constant]
        handles += [part(name).register_forward_pre_hook(partial(note_taken, name)) for name in self.parts.affine]
        try:
            outputs_of(self.module, models.origin, batch.inputs)
        finally:
            for handle in handles:
                handle.remove()
        return given, taken

    def _affine(self, models: RoundModels, taken: Given) -> Given:
        """(1 + n_clients, …): what affine parts of the global model give, and those of every client's difference."""
        affine = {}
        for name, entering in taken.items():
            layer, n = Layer.of(name), len(models.clients)
            weight, bias = models.origin[layer.weight], models.origin.get(layer.bias)
            of_global = nn.functional.linear(entering, weight, bias)[None]
            of_clients = of_global.new_zeros(n, *of_global.shape[1:])
            if layer.weight in models.updates:
                stacked = models.updates[layer.weight].view(-1, weight.shape[1])  # (n_clients · n_units, n_inputs)
                product = (entering.reshape(-1, weight.shape[1]) @ stacked.T).view(-1, n, len(weight))
                of_clients = of_clients + product.transpose(0, 1).reshape(of_clients.shape)
            if layer.bias in models.updates:
                shape = n, *[1] * (entering.ndim - 1), len(weight)
                of_clients = of_clients + models.updates[layer.bias].view(shape)
            affine[name] = torch.cat([of_global, of_clients])
        return affine


class _Replica:
    """A copy of the module for one thread, whose replaced parts give what is put into `given`."""

    def __init__(self, module: nn.Module, parts: Parts) -> None:
        self.module, self.given = copied(module), Given()
        for name in (*parts.constant, *parts.affine):
            setattr(self.module.get_submodule(name), "forward", partial(self._give, name))  # noqa: B010

    def _give(self, name: str, *_: object, **__: object) -> torch.Tensor:
        return self.given[name]


def _mixed(stacked: Given, coefficients: Floats) -> Iterator[Given]:
    """What affine parts give in each mixture, many of them mixed by one product."""
    if not stacked:
        yield from ({} for _ in coefficients)
        return
    size = max(1, TOGETHER // max(tensor[0].numel() for tensor in stacked.values()))
    for at in slices(len(coefficients), size):
        mixed = {
            name: (torch.from_numpy(coefficients[at]).to(tensor) @ tensor.flatten(1)).view(-1, *tensor.shape[1:])
            for name, tensor in stacked.items()
        }
        yield from ({name: tensor[row] for name, tensor in mixed.items()} for row in range(at.stop - at.start))


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Images with their channels last in memory, which convolutions on the CPU are faster with."""
    if tensor.ndim != 4:
        return tensor
    images = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=torch.channels_last)
    return images.copy_(tensor)  # `contiguous` leaves images of one channel as they are


def _images_last(stacked: torch.Tensor) -> torch.Tensor:
    """The same for a stack of filters: (n, n_outputs, n_inputs, height, width)."""
    if stacked.ndim != 5:
        return stacked
    made: torch.Tensor = channels_last(stacked.flatten(0, 1)).unflatten(0, stacked.shape[:2])
    return made
