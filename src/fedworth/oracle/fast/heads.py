"""Heads the kernels know: logits that are affine in the models, and linear layers with activations up to the logits.

In: a module's sections, a round's models, the coalitions' mixtures. Out: each coalition's loss, summed over the
samples. A head is recognised by the graph alone: after the cut there may be nothing, or f, linear, f, linear, …, linear
with rows of samples between them, f always the same: relu, leaky relu, tanh, sigmoid, silu or gelu. Kernels sum along a
trie, which is possible because all coefficients come from one weight a client:

    c_{S,k} = a_k / Σ_{j∈S} a_j,  g_S = 0      or      c_{S,k} = a_k,  g_S = 1 − Σ_{j∈S} a_j.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from fedworth.ledger.ledger import Model
from fedworth.oracle.fast.affine import Prefix, SampleBatch, only_layer, tensor_of
from fedworth.oracle.fast.averages import Averages, averages
from fedworth.oracle.fast.graph import Exported, operation, shape_of
from fedworth.oracle.fast.kernels.activations import (
    GELU,
    LEAKY_RELU,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    TANH_GELU,
    Activation,
)
from fedworth.oracle.fast.kernels.evenness import LOGITS, UNITS, uneven_layers, uneven_outputs
from fedworth.oracle.fast.kernels.first import first_layers
from fedworth.oracle.fast.kernels.hidden import hidden_sums
from fedworth.oracle.fast.kernels.lanes import TILE
from fedworth.oracle.fast.kernels.layers import PackedLayers, pack_layers, packed_layers
from fedworth.oracle.fast.kernels.softmax import softmax_sums
from fedworth.oracle.fast.kernels.tiles import (
    Block,
    Floats,
    NotFiniteError,
    extremes_of,
    tiled,
    tiled_labels,
    tiles_in_block,
)
from fedworth.oracle.fast.mixing import RoundModels
from fedworth.oracle.fast.sections import Sections, numbers, prefix_of
from fedworth.oracle.fast.threads import meanwhile, sum_over_blocks
from fedworth.oracle.fast.trie import coalition_trie
from fedworth.oracle.weighting import Mixtures

MOST_WEIGHTS = 1 << 22
"""Weights after the first activation; running sums of them are kept for every thread, a dozen at a time."""

Layer = tuple[fx.Node, fx.Node | None]
"""Weight and bias of a linear layer."""


@dataclass(frozen=True)
class Head:
    """The linear layers that follow the cut, an activation before each; none if the cut is at the logits."""

    layers: tuple[Layer, ...]
    activation: Activation


def head_of(sections: Sections) -> Head | None:
    """The head the kernels can take over, if there is one."""
    if sections.prefix is None or len(sections.prefix.gives) != 1:
        return None
    layers: list[Layer] = []
    activations: set[Activation] = set()
    node, is_active = sections.prefix.gives[0], False
    while node is not sections.exported.output:
        if len(node.users) != 1:
            return None
        (user,) = node.users
        layer, activation = _layer(node, user, sections.exported), _activation(user)
        if layer is not None and is_active:
            layers.append(layer)
            is_active = False
        elif activation is not None and not is_active:
            activations.add(activation)
            is_active = True
        elif activation == Activation(RELU) and activations == {activation}:
            pass  # a relu once more changes nothing
        elif not _keeps_rows(user):
            return None
        node = user
    n_weights = sum(numbers(weight) for weight, _ in layers)
    if is_active or len(activations) > 1 or n_weights > MOST_WEIGHTS:
        return None
    return Head(tuple(layers), next(iter(activations), Activation()))


def _activation(node: fx.Node) -> Activation | None:
    """The activation that a node is, if the kernels know it."""
    match operation(node):
        case "relu":
            return Activation(RELU)
        case "leaky_relu":
            slope = [*node.args[1:], 0.01][0]
            return Activation(LEAKY_RELU, float(slope)) if isinstance(slope, float | int) else None
        case "gelu":
            return Activation(TANH_GELU if node.kwargs.get("approximate") == "tanh" else GELU)
        case "tanh" | "sigmoid" | "silu" as name:
            return Activation({"tanh": TANH, "sigmoid": SIGMOID, "silu": SILU}[name])
    return None


def _layer(inputs: fx.Node, node: fx.Node, exported: Exported) -> Layer | None:
    """Weight and bias, if both are tensors of the model and rows of samples come in."""
    if operation(node) != "linear" or len(shape_of(inputs)) != 2:
        return None
    weight, bias = [*node.args[1:], None][:2]
    if not isinstance(weight, fx.Node) or weight not in exported.tensor_names:
        return None
    if bias is not None and (not isinstance(bias, fx.Node) or bias not in exported.tensor_names):
        return None
    return weight, bias


def _keeps_rows(node: fx.Node) -> bool:
    """Whether a node hands its samples on as they are, or lays each out as a row."""
    if operation(node) in ("clone", "alias", "detach"):
        return True
    shape = shape_of(node)
    is_view = operation(node) in ("view", "reshape", "flatten", "_unsafe_view")
    if is_view and numbers(node) != numbers(node.all_input_nodes[0]):  # of a row: several are made of one
        return False
    return is_view and len(shape) == 2 and not isinstance(shape[0], int) and isinstance(shape[1], int)


def tiled_batches(sections: Sections, samples: Sequence[SampleBatch]) -> list[SampleBatch]:
    """The batches with a first layer's inputs packed for the kernels, if the prefix is a first layer."""
    layer = only_layer(sections)
    if layer is None:
        return list(samples)
    n_tiles = tiles_in_block(_n_outputs(sections))
    return [replace(batch, tiles=_tiles(batch.values[layer[0]], n_tiles)) for batch in samples]


def _tiles(inputs: torch.Tensor, n_tiles: int) -> tuple[Floats, ...]:
    """Rows of samples as blocks of tiles, each (n_tiles, n_inputs, TILE)."""
    rows = inputs.numpy()[None]
    return tuple(tiled(rows, first, n_tiles)[0] for first in range(0, len(inputs), n_tiles * TILE))


def _n_outputs(sections: Sections) -> int:
    return numbers(prefix_of(sections).gives[0])


class HeadLosses(NamedTuple):
    """What kernels found, and where whole units were too coarse for it."""

    losses: NDArray[np.float64]  # (n_coalitions + 1,): Σ over the samples, last that of the global model
    uneven: NDArray[np.bool_]  # (n_coalitions,): whether a member, or the global model, is too uneven


def head_losses(
    sections: Sections,
    head: Head,
    models: RoundModels,
    mixtures: Mixtures,
    samples: Sequence[SampleBatch],
    *,
    n_threads: int,
) -> HeadLosses:
    """The losses of each coalition's model, and last of the global one.

    The global model is measured as one more client, alone in its coalition; its difference from itself is 0.
    """
    n_coalitions, n_clients = mixtures.memberships.shape
    members = np.zeros((n_coalitions + 1, n_clients + 1), dtype=np.bool_)
    members[:-1, 1:], members[-1, 0] = mixtures.memberships, True
    weights = np.append(1.0, mixtures.weights)

    def order() -> Averages:
        return averages(coalition_trie(members), n_clients + 1, weights, from_global=mixtures.from_global)

    later = meanwhile(order, n_threads)  # the first layer does not need it
    outputs = _Outputs(sections, models, starts=mixtures.from_global, are_logits=not head.layers)
    layers = [_everybodys(layer, models.everybody, sections.exported) for layer in head.layers]
    packed = _packed(layers, starts=mixtures.from_global)
    outputs.uneven |= uneven_layers(layers, n_clients + 1)

    def of_batch(index: int) -> NDArray[np.float64]:
        found = [
            softmax_sums(block, later()) if packed is None else hidden_sums(block, later(), packed, head.activation)
            for block in outputs.blocks(samples[index])
        ]
        return found[0] if len(found) == 1 else np.asarray(sum(found))

    losses = np.asarray(sum_over_blocks(of_batch, len(samples), n_threads)[later().trie.coalition_steps])
    return HeadLosses(losses, outputs.uneven[0] | (members[:-1, 1:] & outputs.uneven[1:]).any(axis=1))


def _packed(layers: Sequence[tuple[Floats, Floats]], *, starts: bool) -> PackedLayers | None:
    """Everybody's layers after the first activation, if any; sums start from the first model or from nothing."""
    if not layers:
        return None
    weights, biases = zip(*layers, strict=True)
    start = ([each[:1] for each in weights], [each[:1] for each in biases]) if starts else None
    return packed_layers(weights, biases, start)


def _everybodys(layer: Layer, models: Sequence[Model], exported: Exported) -> tuple[Floats, Floats]:
    """All models' weights (n_models, n_outputs, n_inputs) and biases (n_models, n_outputs) of a layer."""
    weight, bias = layer
    weights = torch.stack([tensor_of(weight, model, exported) for model in models])
    if bias is None:
        return weights.numpy(), np.zeros(weights.shape[:2], dtype=np.float32)
    return weights.numpy(), torch.stack([tensor_of(bias, model, exported) for model in models]).numpy()


class _Outputs:
    """What everybody's prefix makes of the samples, block by block."""

    def __init__(self, sections: Sections, models: RoundModels, *, starts: bool, are_logits: bool) -> None:
        self.n_outputs, self.n_start = _n_outputs(sections), int(starts)
        self.limit = LOGITS if are_logits else UNITS
        self.uneven = np.zeros(len(models.everybody), np.bool_)
        self.n_tiles = tiles_in_block(self.n_outputs)
        self.prefix = Prefix(sections, models.everybody, images=models.images)
        self.first_layer: Floats | None = None
        if self.prefix.layer is not None:
            self.inputs, weight, bias = self.prefix.layer
            weights = [tensor_of(weight, model, sections.exported).numpy() for model in models.everybody]
            nothing = np.zeros(len(weights[0]), np.float32)
            biases = [
                nothing if bias is None else tensor_of(bias, model, sections.exported).numpy()
                for model in models.everybody
            ]
            self.first_layer = pack_layers((weights,), (biases,))

    def blocks(self, batch: SampleBatch) -> Iterator[Block]:
        """Everybody's outputs in blocks, if all are finite."""
        labels = batch.labels.numpy()
        for block, (tiles, extremes) in enumerate(self._tiles(batch)):
            if np.isnan(extremes).any():
                raise NotFiniteError("what a model makes of a sample")
            self.uneven |= uneven_outputs(tiles, extremes, self.limit)
            here = tiled_labels(labels, block * self.n_tiles * TILE, self.n_tiles)
            yield Block(tiles, extremes, tiles[: self.n_start], here)

    def _tiles(self, batch: SampleBatch) -> Iterator[tuple[Floats, Floats]]:
        """Everybody's outputs as tiles, and their extremes."""
        if self.first_layer is not None:
            for inputs in batch.tiles or _tiles(batch.values[self.inputs], self.n_tiles):
                yield first_layers(inputs, self.first_layer, self.n_outputs)
            return
        with torch.inference_mode():
            outputs = self.prefix.of(batch)[0].flatten(2).numpy()  # (n_models, n_samples, n_outputs)
        for first in range(0, outputs.shape[1], self.n_tiles * TILE):
            tiles = tiled(outputs, first, self.n_tiles)
            yield tiles, extremes_of(tiles)
