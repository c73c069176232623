"""Evaluation in sections: what coalitions' models make of the test set, each section run no oftener than it must.

In: the sections of a module, a round's models, coefficients (n_coalitions, n_clients). Out: for each
coalition Σ over samples of minus the loss, or of another criterion. With z an affine value and Σ c + g = 1,

    z_S = z + Σ_k c_{S,k} (z_k − z),

so clients' prefixes are made once, differences taken, and a few coalitions' prefixes made together. What follows runs
coalition by coalition on a CPU (measured: vmap is slower), always as many together elsewhere. Every product has a shape
that the module and the batches of samples decide, never the number of models or coalitions, since a BLAS rounds
differently for other shapes; and batches are added up one after the other. So a coalition's quality depends neither on
what else is measured nor on the number of threads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from fedworth.ledger.ledger import Model
from fedworth.oracle.fast.graph import Exported, operation
from fedworth.oracle.fast.mixing import RoundModels, combined, stacked
from fedworth.oracle.fast.sections import Section, Sections, numbers, prefix_of
from fedworth.task.losses import CROSS_ENTROPY, Criterion
from fedworth.threads import in_order

PREFIX_BYTES = 256 << 20
"""What the clients' prefixes may take together; beyond, the test set is gone through in parts."""

FEW_CLASSES = 32

Values = Mapping[fx.Node, torch.Tensor]


@dataclass(frozen=True)
class SampleBatch:
    """Some of the test samples, and what the constant section made of them."""

    values: Values
    labels: torch.Tensor
    tiles: tuple[NDArray[np.float32], ...] = ()  # a first layer's inputs as the kernels want them, block by block

    @property
    def n_bytes(self) -> int:
        """What was made of the samples, and is worth keeping."""
        return sum(t.numel() * t.element_size() for t in self.values.values()) + sum(t.nbytes for t in self.tiles)


@dataclass(frozen=True)
class Shared:
    """What is cut at, in one batch: the global model's value, and the clients' differences from it."""

    origin: torch.Tensor
    differences: torch.Tensor  # (n_clients, *shape)


class Prefix:
    """The affine section, for several models at once.

    A sample's numbers come out innermost, as the module itself lays them out: what follows runs through them in rows.
    """

    def __init__(self, sections: Sections, models: Sequence[Model], *, images: bool) -> None:
        self.section = prefix_of(sections)
        self.exported = sections.exported
        self.models = models
        self.images = images
        self.layer = only_layer(sections)

    def of(self, batch: SampleBatch) -> list[torch.Tensor]:
        """For each value cut at, all models' values: (n_models, *shape), in any order of memory."""
        values = [run(self.section, model, self.exported, batch.values) for model in self.models]
        return [stacked(of_models, images=self.images) for of_models in zip(*values, strict=True)]

    def shared(self, batch: SampleBatch) -> list[Shared]:
        """The same as differences from the first model."""
        return [Shared(values[0], values[1:].sub_(values[0])) for values in self.of(batch)]


def only_layer(sections: Sections) -> tuple[fx.Node, fx.Node, fx.Node | None] | None:
    """Inputs, weight and bias, if the prefix is one linear layer of rows of samples."""
    section, exported = sections.prefix, sections.exported
    if section is None:
        return None
    made = [node for node in section.graph_module.graph.nodes if node.op == "call_function"]
    if len(made) != 1 or operation(made[0]) != "linear" or section.gives[0].meta["val"].ndim != 2:
        return None
    inputs, weight, bias = [*section.gives[0].args, None][:3]
    if not isinstance(inputs, fx.Node) or weight not in exported.tensor_names:
        return None
    if not isinstance(weight, fx.Node) or not (bias is None or isinstance(bias, fx.Node)):
        return None
    return inputs, weight, bias


def tensor_of(node: fx.Node, model: Model, exported: Exported) -> torch.Tensor:
    """What a placeholder holds for a model."""
    name = exported.tensor_names.get(node, "")
    return model[name] if name in model else exported.constants[node]


def run(section: Section, model: Model, exported: Exported, values: Values) -> tuple[torch.Tensor, ...]:
    """What a section gives for a model, from what earlier sections gave."""
    reads = [values[node] if node in values else tensor_of(node, model, exported) for node in section.reads]
    given: tuple[torch.Tensor, ...] = section.graph_module(*reads)
    return given


def sample_batches(
    sections: Sections, origin: Model, inputs: torch.Tensor, labels: torch.Tensor, size: int
) -> list[SampleBatch]:
    """The test set in batches, each with its constants, which any model of the round gives alike."""
    made = []
    for start in range(0, len(labels), size):
        values = {sections.exported.samples: inputs[start : start + size]}
        if sections.constants is not None:
            given = run(sections.constants, origin, sections.exported, values)
            values |= zip(sections.constants.gives, given, strict=True)
        made.append(SampleBatch(values, labels[start : start + size]))
    return made


def qualities(
    sections: Sections,
    models: RoundModels,
    coefficients: NDArray[np.float64],
    samples: Sequence[SampleBatch],
    *,
    criterion: Criterion,
    n_threads: int,
) -> NDArray[np.float64]:
    """Each coalition's quality, summed over all samples: (n_coalitions,)."""
    prefix = None if sections.prefix is None else Prefix(sections, models.everybody, images=models.images)
    chunks = np.split(coefficients, range(models.together, len(coefficients), models.together))
    total = np.zeros(len(coefficients))
    parts = [samples] if criterion.is_whole else _parts(sections, samples, len(models.clients))
    for part in parts:
        shared = [[] for _ in part] if prefix is None else in_order(prefix.shared, part, n_threads)
        of_chunk = partial(_chunk_qualities, sections, models, part, shared, criterion)
        for of_batch in np.concatenate(in_order(of_chunk, chunks, n_threads), axis=1):
            total += of_batch
    return total


def _chunk_qualities(
    sections: Sections,
    models: RoundModels,
    part: Sequence[SampleBatch],
    shared: Sequence[Sequence[Shared]],
    criterion: Criterion,
    coefficients: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(n_batches, n_coalitions): the same for a few coalitions, batch by batch, or (1, n_coalitions) of a whole."""
    rows = coefficients
    if part[0].labels.device.type != "cpu":  # all together, so always as many
        rows = np.pad(rows, ((0, models.together - len(rows)), (0, 0)))
    mixed = {} if sections.rest is None else models.mixed(rows)

    def outputs(batch: SampleBatch, values: Sequence[Shared]) -> Iterator[torch.Tensor]:
        prefixes = [combined(rows, value.origin, value.differences) for value in values]
        return islice(logits(sections, models.origin, mixed, batch, prefixes), len(coefficients))

    made = (outputs(batch, values) for batch, values in zip(part, shared, strict=True))
    if criterion.is_whole:
        labels = torch.cat([batch.labels for batch in part])
        return np.array([[criterion.total(torch.cat(whole), labels) for whole in zip(*made, strict=True)]])
    return np.array([[quality(o, b.labels, criterion) for o in found] for b, found in zip(part, made, strict=True)])


def logits(
    sections: Sections, origin: Model, mixed: Model, batch: SampleBatch, shared: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Several coalitions' logits for a batch, from their mixed tensors and mixed prefixes (n_coalitions, …)."""
    if sections.rest is None:
        yield from shared[0]
        return
    rest, front = sections.rest, () if sections.prefix is None else sections.prefix.gives

    def of_coalition(tensors: Model, prefixes: list[torch.Tensor]) -> torch.Tensor:
        own = dict(zip(front, prefixes, strict=True))
        return run(rest, {**origin, **tensors}, sections.exported, {**batch.values, **own})[0]

    if batch.labels.device.type != "cpu":
        yield from torch.func.vmap(of_coalition)(mixed, list(shared))
        return
    for i in range(len(next(iter((*mixed.values(), *shared))))):
        yield of_coalition({name: t[i] for name, t in mixed.items()}, [t[i] for t in shared])


def _parts(sections: Sections, samples: Sequence[SampleBatch], n_clients: int) -> Iterator[Sequence[SampleBatch]]:
    """The batches, as many at a time as the clients' prefixes leave room for."""
    size = 0 if sections.prefix is None else sum(numbers(node) for node in sections.prefix.gives)
    rows = PREFIX_BYTES // max(1, 8 * n_clients * size)
    together = max(1, rows // max(1, len(samples[0].labels)))
    for start in range(0, len(samples), together):
        yield samples[start : start + together]


def quality(logits: torch.Tensor, labels: torch.Tensor, criterion: Criterion) -> float:
    """Σ over samples of minus the loss, or of what a measure says of each.

    For few classes the log-sum-exp with samples innermost is several times faster than the stock one.
    """
    if criterion is not CROSS_ENTROPY or logits.shape[1] > FEW_CLASSES:
        return criterion.total(logits, labels)
    by_class = logits.t().contiguous()  # (n_classes, n_samples)
    largest = by_class.amax(0)  # (n_samples,)
    of_label = by_class.gather(0, labels[None])[0]  # (n_samples,)
    losses = (by_class - largest).exp_().sum(0).log_().add_(largest).sub_(of_label)
    return -float(losses.sum(dtype=torch.float64))
