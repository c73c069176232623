"""Linear layers with activations between them: what the first layer makes of a sample is mixed, not the layer.

    z_S = z_0 + s_S Σ_{k∈S} z_k        z_0 = W_0 x + b_0,  z_k = a_k ((W_k − W_0) x + b_k − b_0)

with s_S the scale of the coalition's weights a_k. A coalition then costs one product per unit and client, instead of
one per unit and input. Later layers are mixed, and evaluated for many coalitions in one product. A
sample's logits are mixed around those of the global model, in the model's precision, so that a logit of −1e9 that
masks a class does no harm to the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from fedworth.arrays import Floats
from fedworth.ledger.ledger import Model
from fedworth.oracle.fast.calls import Activation, Layer
from fedworth.oracle.fast.models import RoundModels, Samples, slices
from fedworth.oracle.weighting import Mixtures
from fedworth.task.losses import ACCURACY, CROSS_ENTROPY, Criterion
from fedworth.task.samples import outputs_of
from fedworth.threads import in_order

CACHED = 1 << 20
"""Numbers that are worked on at a time: 4 MB, about what a processor's cache holds."""

MOST_SAMPLES, FEWEST_ROWS = 1024, 32
MIXED = 1 << 25
"""Numbers in the mixed layers that are held at a time: 128 MB."""

LOG2_E = 1.4426950408889634
"""torch computes powers of 2 faster than powers of e."""

TIE = 1e-30
"""A margin that matters only where all others are 0, as those of a model of zeros are."""

ADDITION = 7
"""An addition of what a client gives takes as long as this many clients in a matrix product (measured)."""


class Chain:
    """Evaluates modules that end in a chain of linear layers, many coalitions at a time."""

    def __init__(
        self,
        module: nn.Module,
        layers: list[Layer],
        between: list[Activation],
        samples: Samples,
        criteria: Sequence[Criterion],
    ) -> None:
        self.module, self.layers, self.between, self.criteria = module, layers, between, criteria
        self.by_margins = {*criteria} <= {CROSS_ENTROPY, ACCURACY}
        self._samples = samples.at(torch.argsort(samples.blocks, stable=True))
        self._kept: tuple[Model, Samples] | None = None

    def __str__(self) -> str:
        later = f", then {len(self.layers) - 1} mixed linear layers" if self.between else ""
        return f"mixed outputs of the linear layer {self.layers[0].weight}{later}"

    def totals(self, models: RoundModels, mixtures: Mixtures, n_threads: int) -> Floats:
        """(n_mixtures, n_criteria, n_blocks): the scores, summed over the samples of each block; higher is better."""
        samples = self._entering(models)
        first, n_units = self._first_layer(models, mixtures.weights), len(models.origin[self.layers[0].weight])
        n_later = sum(models.origin[layer.weight].numel() for layer in self.layers[1:])
        n_few = max(CACHED // max(len(first[1]), FEWEST_ROWS), 2 * n_later) // n_units
        n_few = int(np.clip(n_few // 64 * 64, 16, MOST_SAMPLES))
        some = [samples.at(at) for at in slices(len(samples), n_few)]
        found = np.zeros((len(mixtures), len(self.criteria), samples.n_blocks))
        for part in slices(len(mixtures), max(1, MIXED // max(1, n_later))):
            here = mixtures.rows(np.arange(part.start, part.stop))
            later = [self._mixed(models, here, layer) for layer in self.layers[1:]]
            size = max(1, CACHED // (n_units * n_few))
            mixers = [Mixer(here, at, first[0]) for at in slices(len(here), size)]
            work = [_Work(self, first, later, mixers, few) for few in some]
            for few, totals in zip(some, in_order(_Work.totals, work, n_threads), strict=True):
                first_block = int(few.blocks[0])
                found[part, :, first_block : first_block + totals.shape[2]] += totals
        found *= [[1.0 if criterion.is_better_higher else -1.0] for criterion in self.criteria]
        return found

    def _entering(self, models: RoundModels) -> Samples:
        """Samples in the order of their blocks, with what enters the first layer in place of the inputs."""
        frozen = models.frozen
        if self._kept is not None and is_same(self._kept[0], frozen):
            return self._kept[1]
        taken: list[torch.Tensor] = []
        layer = self.module.get_submodule(self.layers[0].part)
        handle = layer.register_forward_pre_hook(lambda _, args: taken.append(args[0].clone()))
        try:
            for batch in self._samples.batches(128):
                outputs_of(self.module, models.origin, batch.inputs)
        finally:
            handle.remove()
        entering = Samples(torch.cat(taken), self._samples.labels, self._samples.blocks, self._samples.n_blocks)
        self._kept = {name: tensor.clone() for name, tensor in frozen.items()}, entering
        return entering

    def _first_layer(self, models: RoundModels, weights: Floats) -> tuple[torch.Tensor, torch.Tensor]:
        """The first layer of the global model and of the clients' weighted differences from it.

        Weights are ((1 + n_clients) · n_units, n_inputs), biases (1 + n_clients, n_units or 1, 1).
        """
        layer = self.layers[0]
        like = models.origin[layer.weight]
        weight = _stacked(models, layer.weight, weights).view(-1, like.shape[1])
        bias = weight.new_zeros(1 + len(weights), 1)
        if layer.bias in models.origin:
            bias = _stacked(models, layer.bias, weights)
        return weight, bias[:, :, None]

    def _mixed(self, models: RoundModels, mixtures: Mixtures, layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
        """A later layer of each mixture: weights (n, n_outputs, n_inputs) and biases (n, n_outputs, 1)."""
        weight = _each(models, layer.weight, mixtures)
        if layer.bias not in models.origin:
            return weight, weight.new_zeros(len(mixtures), weight.shape[1], 1)
        return weight, _each(models, layer.bias, mixtures)[:, :, None]


@dataclass(frozen=True)
class _Work:
    """A few samples, and all mixtures of a part."""

    chain: Chain
    first: tuple[torch.Tensor, torch.Tensor]
    later: Sequence[tuple[torch.Tensor, torch.Tensor]]
    mixers: Sequence["Mixer"]
    few: Samples

    def totals(self) -> Floats:
        """(n_mixtures, n_criteria, n): the criteria, summed over the samples of each block, from their first to their
        last."""
        assert isinstance(self.few.inputs, torch.Tensor)
        weight, bias = self.first
        z = (weight @ self.few.inputs.T).view(len(bias), -1, len(self.few)) + bias  # z_0, and z_k of each client
        if not self.later and self.chain.by_margins:
            z = self._margins(z)  # linear in the model as well
        widths = z.shape[1], *(weight.shape[1] for weight, _ in self.later)
        rooms = [z.new_empty(len(self.mixers[0]), width, z.shape[2]) for width in widths]
        blocks = (self.few.blocks - self.few.blocks[0]).cpu()  # samples are in their order
        shape = self.mixers[-1].at.stop, len(self.chain.criteria), int(blocks[-1]) + 1
        found = torch.zeros(shape, dtype=torch.float64)
        for mixer in self.mixers:
            found[mixer.at].index_add_(2, blocks, self._scores(mixer, z, rooms).cpu())
        return found.numpy()

    def _scores(self, mixer: "Mixer", z: torch.Tensor, rooms: list[torch.Tensor]) -> torch.Tensor:
        """(n_mixtures, n_criteria, n_samples): the criteria of each sample."""
        criteria, labels = self.chain.criteria, self.few.labels
        outputs = self._outputs(mixer, z, rooms)
        if self.chain.by_margins:
            margins = self._margins(outputs) if self.later else outputs
            largest = margins.amax(1)  # torch's argmax takes a hundred times as long
            scores = {ACCURACY: (largest <= 0) + 0 * largest}  # right if no class beats the label; NaN if not finite
            if CROSS_ENTROPY in criteria:  # last, since it overwrites the margins
                scores[CROSS_ENTROPY] = self._cross_entropies(margins, mixer, z, rooms)
            found = [scores[criterion] for criterion in criteria]
        else:
            n, n_classes, n_samples = outputs.shape
            flat = outputs.transpose(1, 2).reshape(-1, n_classes)
            repeated = labels.repeat(n, *[1] * (labels.ndim - 1))
            found = [criterion.of(flat, repeated).view(n, n_samples) for criterion in criteria]
        return torch.stack([scores.double() for scores in found], 1)

    def _margins(self, logits: torch.Tensor) -> torch.Tensor:
        """By how much each class beats the label, for powers of 2, in place: (n, n_classes, n_samples)."""
        labels = self.few.labels
        margins = logits.sub_(logits.gather(1, labels.expand(len(logits), 1, -1))).mul_(LOG2_E)
        if ACCURACY in self.chain.criteria:  # of equal classes the first is predicted
            is_before = torch.arange(margins.shape[1], device=labels.device)[:, None] < labels
            margins += is_before * margins.new_tensor(TIE)
        return margins

    def _cross_entropies(
        self, margins: torch.Tensor, mixer: "Mixer", z: torch.Tensor, rooms: list[torch.Tensor]
    ) -> torch.Tensor:
        """(n_mixtures, n_samples), from margins, which are lost."""
        losses = margins.exp2_().sum(1).log_()
        if bool(losses.sum().isfinite()):
            return losses
        outputs = self._outputs(mixer, z, rooms)  # an exponential overflows
        return torch.logsumexp((self._margins(outputs) if self.later else outputs) / LOG2_E, 1)

    def _outputs(self, mixer: "Mixer", z: torch.Tensor, rooms: list[torch.Tensor]) -> torch.Tensor:
        """(n_mixtures, n_outputs, n_samples)."""
        h = mixer.mixed(z, rooms[0][: len(mixer)])
        for (weight, bias), activation, room in zip(self.later, self.chain.between, rooms[1:], strict=True):
            h = torch.baddbmm(bias[mixer.at], weight[mixer.at], activation(h), out=room[: len(mixer)])
        return h


class Mixer:
    """Mixes what everybody's first layer gives: z_0 + s Σ_{k∈S} z_k for some of the mixtures.

    By one matrix product, or by running sums: a mixture starts from the one before it if that is a subset, as prefixes
    of a permutation are.
    """

    def __init__(self, mixtures: Mixtures, at: slice, like: torch.Tensor) -> None:
        members, self.at = mixtures.memberships[at], at
        scales = (
            1 / np.where(mixtures.is_empty, 1, mixtures.totals) if not mixtures.from_global else np.ones(len(mixtures))
        )
        self.scales = torch.from_numpy(scales[at, None]).to(like)
        self.product = torch.cat([torch.ones_like(self.scales), torch.from_numpy(members).to(like) * self.scales], 1)
        before = np.vstack([np.zeros_like(members[:1]), members[:-1]])
        self.is_fresh = (before & ~members).any(axis=1) | (np.arange(len(members)) == 0)
        is_joining = members & ~(before & ~self.is_fresh[:, None])
        clients, ends = np.nonzero(is_joining)[1].tolist(), np.cumsum(is_joining.sum(axis=1)).tolist()
        self.joining = [clients[start:end] for start, end in pairwise([0, *ends])]
        self.by_sums = ADDITION * len(clients) < members.size

    def __len__(self) -> int:
        return self.at.stop - self.at.start  # type: ignore[no-any-return]

    def mixed(self, z: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """(n_mixtures, n_units, n_samples), written to `out`."""
        if not self.by_sums:
            torch.mm(self.product, z.flatten(1), out=out.flatten(1))
            return out
        each, sums = z[1:].unbind(), out.unbind()
        for i, joining in enumerate(self.joining):
            total = torch.zeros_like(each[0]) if self.is_fresh[i] else sums[i - 1]
            if not joining:
                sums[i].copy_(total)
            for k in joining:
                total = torch.add(total, each[k], out=sums[i])
        return torch.addcmul(z[:1], out, self.scales[:, :, None], out=out)


def _stacked(models: RoundModels, name: str, weights: Floats) -> torch.Tensor:
    """(1 + n_clients, size): a tensor of the global model, and every client's difference times its weight."""
    like = models.origin[name].reshape(1, -1)
    if name not in models.updates:
        return torch.cat([like, like.new_zeros(len(weights), like.shape[1])])
    return torch.cat([like, models.updates[name] * torch.from_numpy(weights[:, None]).to(like)])


def _each(models: RoundModels, name: str, mixtures: Mixtures) -> torch.Tensor:
    """(n_mixtures, *shape): a tensor of each mixture, whether it varies or not."""
    like = models.origin[name]
    return models.mixed(name, mixtures) if name in models.varying else like.expand(len(mixtures), *like.shape)


def is_same(model: Model, other: Model) -> bool:
    """Whether two models have the same tensors."""
    return model.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in model.items())
