"""Heads the kernels know: logits that are affine in the models, and ReLU layers up to the logits.

Comes in: a module's stages and a round's models. Goes out: each coalition's loss, summed over the samples. Recognised
by the graph alone: after the cut there may be nothing, or relu, linear, relu, linear, …, linear with rows of samples
between them. Kernels sum along a trie, so coefficients must come from one weight a client,

    c_{S,k} = a_k / Σ_{j∈S} a_j,  g_S = 0      or      c_{S,k} = a_k,  g_S = 1 − Σ_{j∈S} a_j,

which they do in every weighting; the weights are found again from the coefficients.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from fedworth.arrays import Memberships
from fedworth.federation.ledger import Model
from fedworth.utility.affine import Batch, Prefix, tensor_of
from fedworth.utility.graph import Exported, operation, shape_of
from fedworth.utility.kernels import ReluHeads, hidden_relu_losses, softmax_losses
from fedworth.utility.mixing import RoundModels
from fedworth.utility.stages import Stages, numbers
from fedworth.utility.threads import sum_over_blocks
from fedworth.utility.trie import Trie, coalition_trie

CLOSE = 1e-12
"""Coefficients are ratios of float64, exact but for roundings."""

MOST_WEIGHTS = 1 << 22
"""Weights after the first relu; running sums of them are kept for every thread, a dozen at a time."""

Floats = NDArray[np.float32]
Layer = tuple[fx.Node, fx.Node | None]
"""Weight and bias of a linear layer."""


@dataclass(frozen=True)
class Head:
    """The linear layers that follow the cut, a relu before each; none if the cut is at the logits."""

    layers: tuple[Layer, ...]


def head_of(stages: Stages) -> Head | None:
    """The head the kernels can take over, if there is one."""
    if stages.prefix is None or len(stages.prefix.gives) != 1:
        return None
    layers: list[Layer] = []
    node, is_rectified = stages.prefix.gives[0], False
    while node is not stages.exported.output:
        if len(node.users) != 1:
            return None
        (user,) = node.users
        layer = _layer(node, user, stages.exported)
        if operation(user) == "linear" and layer is not None and is_rectified:
            layers.append(layer)
            is_rectified = False
        elif operation(user) == "relu":
            is_rectified = True
        elif not _keeps_rows(user):
            return None
        node = user
    n_weights = sum(numbers(weight) for weight, _ in layers)
    return None if is_rectified or n_weights > MOST_WEIGHTS else Head(tuple(layers))


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
    return is_view and len(shape) == 2 and not isinstance(shape[0], int) and isinstance(shape[1], int)


@dataclass(frozen=True)
class Shares:
    """Coalitions whose coefficients come from one weight a client."""

    memberships: Memberships  # (n_coalitions, n_clients)
    weights: NDArray[np.float64]  # (n_clients,)
    from_global: bool

    def interchanged(self, twins: Sequence[Sequence[int]]) -> "Shares":
        """The same coalitions, the first of equal clients of equal weight standing for whichever of them is in."""
        members = self.memberships.copy()  # (n_coalitions, n_clients)
        for group in twins:
            for weight in np.unique(self.weights[list(group)]):
                alike = [k for k in group if self.weights[k] == weight]
                n_present = self.memberships[:, alike].sum(axis=1, keepdims=True)  # (n_coalitions, 1)
                members[:, alike] = np.arange(len(alike)) < n_present
        return Shares(members, self.weights, self.from_global)


def shares_of(coefficients: NDArray[np.float64], of_global: NDArray[np.float64]) -> Shares | None:
    """The weights behind the coefficients of coalitions, none of them empty; None if there are no such weights."""
    members = coefficients != 0  # (n_coalitions, n_clients)
    fixed = np.where(members.any(axis=0), coefficients.max(axis=0, initial=0), 1.0)  # (n_clients,)
    if np.abs(coefficients - members * fixed).max(initial=0) <= CLOSE and (fixed > 0).all():
        return Shares(members, fixed, True)
    weights = _relative_weights(coefficients, members)
    parts = members * weights  # (n_coalitions, n_clients)
    error = np.abs(coefficients - parts / parts.sum(axis=1, keepdims=True)).max(initial=0)
    if error <= CLOSE and np.abs(of_global).max(initial=0) <= CLOSE and (weights > 0).all():
        return Shares(members, weights, False)
    return None


def _relative_weights(coefficients: NDArray[np.float64], members: Memberships) -> NDArray[np.float64]:
    """Weights in the ratios of the coefficients; clients who never meet, not even by way of others, are free."""
    n_clients = coefficients.shape[1]
    weights, known = np.ones(n_clients), np.zeros(n_clients, dtype=bool)
    while True:
        is_new = members & ~known  # (n_coalitions, n_clients)
        n_new, meets = is_new.sum(axis=1), (members & known).any(axis=1)  # (n_coalitions,)
        if not n_new.any():
            return weights
        best = int(np.where(n_new > 0, n_new + n_clients * meets, 0).argmax())
        row, new = coefficients[best], is_new[best]
        anchors = np.flatnonzero(members[best] & known)
        weights[new] = row[new] * (weights[anchors[0]] / row[anchors[0]] if len(anchors) else 1.0)
        known |= new


def head_losses(
    stages: Stages, head: Head, models: RoundModels, shares: Shares, samples: Sequence[Batch], *, n_threads: int
) -> NDArray[np.float64]:
    """Σ loss over the samples of each coalition's model, and last of the global one: (n_coalitions + 1,)."""
    prefix = Prefix(stages, models.everybody, images=models.images)
    layers = [_everybodys(layer, models.everybody, stages.exported) for layer in head.layers]
    trie, alone = coalition_trie(shares.memberships), coalition_trie(np.ones((1, 1), dtype=np.bool_))

    def of_block(block: int) -> NDArray[np.float64]:
        with torch.inference_mode():
            outputs = prefix.of(samples[block])[0].flatten(2).numpy()  # (n_models, n_samples, n_outputs)
        everybody = _Outputs(outputs, tuple(layers), samples[block].labels.numpy())
        origin, clients = everybody.of(slice(1)), everybody.of(slice(1, None))
        after = clients.losses(trie, shares.weights, origin if shares.from_global else None)
        return np.append(after, origin.losses(alone)) * len(everybody.labels)

    return sum_over_blocks(of_block, len(samples), n_threads)


def _everybodys(layer: Layer, models: Sequence[Model], exported: Exported) -> tuple[Floats, Floats]:
    """All models' weights (n_models, n_outputs, n_inputs) and biases (n_models, n_outputs) of a layer."""
    weight, bias = layer
    weights = torch.stack([tensor_of(weight, model, exported) for model in models])
    if bias is None:
        return weights.numpy(), np.zeros(weights.shape[:2], dtype=np.float32)
    return weights.numpy(), torch.stack([tensor_of(bias, model, exported) for model in models]).numpy()


@dataclass(frozen=True)
class _Outputs:
    """What several models' prefixes give for some samples, and the layers that follow."""

    values: Floats  # (n_models, n_samples, n_outputs)
    layers: tuple[tuple[Floats, Floats], ...]
    labels: NDArray[np.int64]

    def of(self, chosen: slice) -> "_Outputs":
        return _Outputs(self.values[chosen], tuple((w[chosen], b[chosen]) for w, b in self.layers), self.labels)

    def losses(
        self, trie: Trie, weights: NDArray[np.float64] | None = None, origin: "_Outputs | None" = None
    ) -> NDArray[np.float64]:
        """Each coalition's mean loss; averages start from the `origin` if there is one."""
        if not self.layers:
            start = None if origin is None else origin.values[0]
            return softmax_losses(self.values, self.labels, trie, client_weights=weights, global_logits=start)
        from_head = None if origin is None else origin.heads
        return hidden_relu_losses(self.heads, self.labels, trie, client_weights=weights, global_head=from_head)

    @property
    def heads(self) -> ReluHeads:
        return ReluHeads(self.values, tuple(w for w, _ in self.layers), tuple(b for _, b in self.layers))
