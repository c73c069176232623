"""Oracles measure utilities; `LoopOracle` is the plain one that every faster oracle is compared with.

U_t(S) = ℓ(w^t; D_c) − ℓ(w_S; D_c): the task's loss on the server's test set before minus after (eq. 6), or a measure
such as accuracy after minus before. `LoopOracle` averages, loads and predicts, one coalition after the other.

An oracle may take more than one measure in the same forward pass (`also`): the utilities by other measures follow those
by block, one column each.

Models are first converted to the names and dtypes of the task's module. Servers change dtypes as they average (a
counter of batches, int64 in the module, comes back as float64), and frameworks that exchange lists of arrays name them
0, 1, …, in the order of the module's state.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Utilities
from fedworth.errors import ModelError, UtilityError
from fedworth.ledger.ledger import Model, Round
from fedworth.ledger.model import check_alike
from fedworth.names import Measure
from fedworth.oracle.weighting import Mixtures
from fedworth.task.adapters import renamed
from fedworth.task.losses import Criterion
from fedworth.task.modules import UtilityModule, tied_names
from fedworth.task.samples import tensors_of
from fedworth.task.task import N_PROBED, Task, refuse_probabilities
from fedworth.threads import fitting_threads

OUTPUT_BATCH = 256
MOST_IN_FLOAT64 = 1 << 20
"""Numbers of a model up to which mixtures are summed in float64."""

LARGE_IMAGES = 32
"""Images that a larger model takes at a time on a CPU, so that its activations stay in the cache: ResNet-18 takes a
third less time than with 256 images of 32 × 32, and a tenth of the memory for activations."""

OUTLYING, N_ROUNDED, UNSURE = 100.0, 512, 0.1
"""A model is tested for rounding if a number in it is this many times the global model's; on this many samples; and it
is refused if rounding may move the loss by this part of it."""


class Oracle(Protocol):
    """Measures the utilities of one round's coalitions, given as mixtures of the round's models."""

    @property
    def task(self) -> Task:
        """The module and the test set."""

    @property
    def measure(self) -> Measure:
        """`loss`, or the name of a measure that goes with the task's loss."""

    @property
    def n_blocks(self) -> int:
        """The number of blocks of test samples."""

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """(n_mixtures, n_columns): the utility of each mixture on each block of samples, then by other measures."""


@runtime_checkable
class OutputOracle(Oracle, Protocol):
    """An oracle that also gives the outputs of mixtures on some of the test samples."""

    def outputs(self, round_: Round, mixtures: Mixtures, which: Sequence[Indices]) -> Iterator[torch.Tensor]:
        """The outputs of each mixture on its own samples, given by their numbers."""


def also_of(oracle: Oracle) -> tuple[Measure, ...]:
    """The other measures that an oracle takes in the same forward pass; none if it does not say."""
    return tuple(getattr(oracle, "also", ()))


def n_columns_of(oracle: Oracle) -> int:
    """The number of columns of an oracle's utilities: one per block, and one for each other measure."""
    return oracle.n_blocks + len(also_of(oracle))


def threads_of(oracle: Oracle) -> AbstractContextManager[None]:
    """A context with the number of torch threads that suits the module which an oracle measures."""
    return fitting_threads(oracle.task.module)


def n_threads_of(oracle: Oracle) -> int:
    """The number of threads an oracle works on; one if it does not say."""
    return int(getattr(oracle, "n_threads", 1))


@dataclass(frozen=True)
class LoopOracle:
    """Measures one coalition after the other.

    Models are averaged on the CPU in float64, those of more than a million numbers in their own precision, and
    evaluated in their own precision on the task's device.

    Args:
        task: What models are judged by.
        measure: `loss`, or a measure of the task such as `accuracy`.
        also: Other measures, which are taken in the same forward pass: a column of the utilities each.

    Example:
        federation = fedworth.Federation(ledger, task, oracle=fedworth.LoopOracle(task, measure="accuracy"))
    """

    task: Task
    measure: Measure = "loss"
    also: tuple[Measure, ...] = ()

    def __post_init__(self) -> None:
        criteria_of(self.task, self.measure, self.also)  # an unknown measure is an error here already

    @property
    def n_blocks(self) -> int:
        """The number of blocks of test samples."""
        return self.task.n_blocks

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """(n_mixtures, n_columns): the utility of each mixture on each block of samples, then by other measures."""
        criteria, round_ = criteria_of(self.task, self.measure, self.also), fitted(round_, self.task)
        with fitting_threads(self.task.module):
            model_of = self._mixer(round_, mixtures, is_large(round_.global_model))
            refuse_unfit(self.task, criteria, round_.global_model)
            refuse_unusable(self.task, round_, mixtures, model_of)
            return plain_utilities(self.task, criteria, round_, mixtures, model_of)

    def outputs(self, round_: Round, mixtures: Mixtures, which: Sequence[Indices]) -> Iterator[torch.Tensor]:
        """The outputs of each mixture on its own samples, given by their numbers.

        Models are mixed in their own precision into one buffer, which takes little time and the memory of one model.
        """
        round_ = fitted(round_, self.task)
        model_of = self._mixer(round_, mixtures, True)
        with fitting_threads(self.task.module):
            refuse_unfit(self.task, (self.task.criterion(self.measure),), round_.global_model)
            refuse_unusable(self.task, round_, mixtures, model_of)
        for row, samples in enumerate(which):
            with fitting_threads(self.task.module):
                outputs = outputs_on(self.task, model_of(row), samples)
            yield outputs

    def _mixer(self, round_: Round, mixtures: Mixtures, is_large: bool) -> "ModelOf":
        return mixer(round_, mixtures, is_large)


def plain_utilities(
    task: Task, criteria: Sequence[Criterion], round_: Round, mixtures: Mixtures, model_of: "ModelOf | None" = None
) -> Utilities:
    """(n_mixtures, n_columns): the utilities of a fitted round's mixtures, measured one after the other."""
    model_of = model_of or mixer(round_, mixtures, is_large(round_.global_model))
    before = quality(task, criteria, round_.global_model)
    after = [quality(task, criteria, model_of(row)) for row in range(len(mixtures))]
    return in_columns(np.array(after).reshape(-1, *before.shape) - before)


def outputs_on(task: Task, model: Model, samples: Indices) -> torch.Tensor:
    """The outputs of a model on some samples, given by their numbers; on the CPU."""
    model = {name: tensor.to(task.device) for name, tensor in model.items()}  # once, not for each batch
    size = min(batch_size(task, model), OUTPUT_BATCH)
    with torch.inference_mode():
        batches = torch.from_numpy(samples).to(task.device).split(size)
        outputs = torch.cat([task.outputs(model, batch).cpu() for batch in batches])
    refuse_misfit(task, outputs, task.labels[torch.from_numpy(samples)])
    return outputs


def batch_size(task: Task, model: Model) -> int:
    """Samples that a model takes at a time."""
    is_cpu_image = task.device.type == "cpu" and all(x.ndim == 4 for x in tensors_of(task.inputs))
    return min(task.batch_size, LARGE_IMAGES) if is_cpu_image and is_large(model) else task.batch_size


def fitted(round_: Round, task: Task) -> Round:
    """The same round with the names and dtypes of the task's module; a global model of another module is an error."""
    like = task.state

    def all_of(models: Mapping[int, Model]) -> dict[int, Model]:
        return {client: fitted_model(model, task, like) for client, model in models.items()}

    start = fitted_model(round_.global_model, task, like)
    # Tensors that are one in the module get the numbers of the last, as torch loads them. A client that sends them
    # unequal is refused, but the server's average may already contain it.
    last = {name: names[-1] for names in tied_names(task.module) for name in names}
    start = {name: start.get(last.get(name, name), tensor) for name, tensor in start.items()}
    refuse_other_tensors(start, task, like)
    return Round(round_.entry, start, all_of(round_.client_models), all_of(round_.apart_models))


def refuse_other_tensors(model: Model, task: Task, like: Model) -> None:
    """Refuse a global model, under the module's names, that has other tensors than the task expects."""
    try:
        check_alike(model, with_tied(like, task), "global model, against the task's module")
    except ModelError as error:
        if task.exchanged is None and set(model) < set(like):
            raise ModelError(
                f"{error}; if the federation exchanges only part of the module, such as adapters, name it: "
                "Task(…, exchanged='lora_'), and the other tensors are the module's own"
            ) from error
        if task.exchanged is not None and set(like) < set(model):
            raise ModelError(
                f"{error}; the ledger has tensors that the task does not name: name them in exchanged, too, such as a "
                "head beside adapters: Task(…, exchanged=('lora_', 'classifier'))"
            ) from error
        raise


def fitted_model(model: Model, task: Task, like: Model | None = None) -> Model:
    """A model with the names and dtypes of the task's module; tensors that have them already are not copied."""
    like = task.state if like is None else like
    own = _by_place(model, like) if task.exchanged is None else renamed(_by_place(model, like), like, task.exchanged)
    fitting = {name: _as(tensor, like[name].dtype) if name in like else tensor for name, tensor in own.items()}
    return with_tied(fitting, task)


def with_tied(model: Model, task: Task) -> Model:
    """The model with every name of a tensor that the module has under several, and the ledger under one of them."""
    groups = [names for names in tied_names(task.module) if not model.keys().isdisjoint(names)]
    last = {name: model[[each for each in names if each in model][-1]] for names in groups for name in names}
    return {**last, **model} if last.keys() - model.keys() else model


def _by_place(model: Model, like: Model) -> Model:
    """A model whose tensors are named 0, 1, … with the module's names instead; shapes are compared later."""
    places = [str(place) for place in range(len(like))]
    if set(model) != set(places) or set(model) == set(like):
        return model
    return {name: model[place] for name, place in zip(like, places, strict=True)}


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    is_rounded = tensor.is_floating_point() and not dtype.is_floating_point
    return (tensor.round() if is_rounded else tensor).to(dtype)


def criteria_of(task: Task, measure: Measure, also: Sequence[Measure]) -> tuple[Criterion, ...]:
    """The criterion of a measure, and those of the other measures."""
    return tuple(task.criterion(name) for name in (measure, *also))


def in_columns(by_block: Floats) -> Utilities:
    """(n, n_blocks + n_also): all blocks of the first criterion, and sums of the others; from (n, n_criteria, …)."""
    if by_block.shape[1] == 1:
        return by_block[:, 0]
    return np.concatenate([by_block[:, 0], by_block[:, 1:].sum(axis=2)], axis=1)


def quality(task: Task, criteria: Sequence[Criterion], model: Model) -> Floats:
    """(n_criteria, n_blocks): the scores of a model on each block of test samples; higher is better."""
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]] = predictions(task, model)
    if any(criterion.is_whole for criterion in criteria):
        pairs = [together(pairs)]
    found, start = np.zeros((len(criteria), task.n_blocks)), 0
    for outputs, labels in pairs:
        blocks = None if task.blocks is None else task.blocks[start : start + len(labels)]
        found += block_totals(criteria, outputs, labels, blocks, task.n_blocks)
        start += len(labels)
    return found / n_counted(criteria, task.labels)


def n_counted(criteria: Sequence[Criterion], labels: torch.Tensor) -> Floats:
    """(n_criteria, 1): what sums over these samples are divided by."""
    return np.array([[criterion.n_counted(labels)] for criterion in criteria])


def block_totals(
    criteria: Sequence[Criterion], outputs: torch.Tensor, labels: torch.Tensor, blocks: Indices | None, n_blocks: int
) -> Floats:
    """(n_criteria, n_blocks): the sums over the samples of each block, summed in float64; higher is better.

    Of a measure that is not a mean over samples every block has its part; only that of the first criterion is its own.
    """
    if blocks is None:
        return np.array([[criterion.total(outputs, labels)] for criterion in criteria])
    found = [_block_totals(criteria[0], outputs, labels, blocks, n_blocks)]
    for criterion in criteria[1:]:
        if criterion.is_whole:
            shares = np.bincount(blocks, minlength=n_blocks) / len(labels)
            found.append(shares * criterion.total(outputs, labels))
        else:
            found.append(_block_totals(criterion, outputs, labels, blocks, n_blocks))
    return np.array(found)


def _block_totals(
    criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor, blocks: Indices, n_blocks: int
) -> Floats:
    scores = criterion.of(outputs, labels).double().cpu().numpy()  # (n_samples,)
    if scores.ndim == 0:
        return jackknife(criterion, outputs, labels, blocks, n_blocks)
    totals = np.bincount(blocks, scores, minlength=n_blocks).astype(np.float64)
    return totals if criterion.is_better_higher else -totals


def jackknife(
    criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor, blocks: Indices, n_blocks: int
) -> Floats:
    """(n_blocks,): the part of each block in a score that is not a mean over samples; the parts add up to the score.

    With θ the score on all samples, θ_b without block b, and p_b the block's share of the samples,

        u_b = p_b (θ − β) + (1 − p_b) (θ − θ_b),        β = Σ_b (1 − p_b) (θ − θ_b)

    For a mean over samples, these are the sums over each block's samples, and β = 0. For any smooth function of the
    test set, their spread over equal blocks gives the delete-a-block jackknife variance.
    """
    shares = np.bincount(blocks, minlength=n_blocks) / len(labels)
    score = criterion.total(outputs, labels)
    drops = np.zeros(n_blocks)  # θ − θ_b
    for block in np.flatnonzero(shares) if shares.max() < 1 else ():
        kept = torch.from_numpy(blocks != block).to(labels.device)
        without = _score_without(criterion, outputs[kept], labels[kept])
        if np.isfinite(score) and not np.isfinite(without):
            raise UtilityError(
                f"{criterion.name} is not defined without block {block} of {n_blocks} blocks of test samples, as where "
                "all samples of one class are in one block, so its uncertainty cannot be estimated; use fewer blocks, "
                "or a test set with more samples of each class"
            )
        drops[block] = score - without
    drops *= 1 - shares
    return np.asarray(shares * (score - drops.sum()) + drops)


def _score_without(criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """The score on the samples of all other blocks; NaN if it is not defined there."""
    try:
        return criterion.total(outputs, labels)
    except Exception:  # a function of the user's own, which worked on all samples
        return np.nan


def predictions(task: Task, model: Model) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The model's outputs and the labels of the test set, batch by batch."""
    model = {name: tensor.to(task.device) for name, tensor in model.items()}  # once, not for each batch
    size = batch_size(task, model)
    for start in range(0, len(task.labels), size):
        some = slice(start, start + size)
        with torch.inference_mode():
            outputs = task.outputs(model, some)
        refuse_misfit(task, outputs, task.labels[some])
        yield outputs, task.labels[some]


def together(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """All outputs and all labels."""
    outputs, labels = zip(*pairs, strict=True)
    return torch.cat(outputs), torch.cat(labels)


def refuse_unfit(task: Task, criteria: Sequence[Criterion], model: Model) -> None:
    """Refuse a module whose outputs the loss cannot take, and a module or a function of the user's that is random.

    The module is tried on the first samples, a user's function on all of them.
    """
    some = slice(0, min(N_PROBED, task.batch_size))
    labels = task.labels[some].clone()
    labels.view(-1)[0] = task.labels.max()  # so that a label without a logit is found
    with torch.inference_mode():
        first, second = task.outputs(model, some), task.outputs(model, some)
        refuse_misfit(task, first, labels)
    if not torch.allclose(first.double(), second.double(), equal_nan=True):
        raise UtilityError(
            "the module gives other outputs when it is called again with the same model, so it cannot be measured; "
            "remove dropout and other random numbers from its evaluation mode"
        )
    refuse_probabilities(task, model, first)
    for criterion in criteria:
        if criterion.is_own and not isinstance(task.module, UtilityModule):  # a user's utility is a module, tried above
            _refuse_random(criterion, *together(predictions(task, model)))


def _refuse_random(criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor) -> None:
    with torch.inference_mode():
        found, again = criterion.total(outputs, labels), criterion.total(outputs, labels)
    if not np.allclose(found, again, equal_nan=True):
        raise UtilityError(
            f"{criterion.name}: gave {found:.6g} and then {again:.6g} for the same outputs, so it cannot be "
            "measured; remove random numbers from it, or draw them from a generator with a fixed seed in each call"
        )


def refuse_misfit(task: Task, outputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Refuse outputs that the loss cannot take, such as fewer logits than there are classes."""
    misfit = task.judged_by.outputs(outputs, labels)
    if misfit:
        raise ModelError(f"the model gives {misfit}, as loss {task.judged_by.criterion.name!r} needs")


class ClientModelError(UtilityError):
    """A client's model that cannot be measured; `client` is the client's index."""

    def __init__(self, client: int, message: str) -> None:
        super().__init__(client, message)
        self.client, self.message = client, message

    def __str__(self) -> str:
        return self.message


def refuse_unusable(task: Task, round_: Round, mixtures: Mixtures, model_of: "ModelOf | None" = None) -> None:
    """Refuse a coalition with a model that no module can load, or that leaves the loss to rounding."""
    models, state = {**round_.client_models, **round_.apart_models}, task.state
    tied = [[name for name in names if name in state] for names in tied_names(task.module)]
    present = np.flatnonzero(mixtures.memberships.any(axis=0)).tolist()
    for first, other in [(names[0], other) for names in tied for other in names[1:]]:
        for client in present:
            if client in models and not torch.equal(models[client][first], models[client][other]):
                raise ClientModelError(
                    client,
                    f"round {round_.entry.number}: client {client} sent different numbers for {first!r} and {other!r}, "
                    f"which are one tensor in the module; leave out client {client}, or see how it saves its model",
                )
    model_of = model_of or mixer(round_, mixtures, is_large(round_.global_model))
    refuse_rounding(task, round_, mixtures, model_of)


def refuse_rounding(task: Task, round_: Round, mixtures: Mixtures, model_of: "ModelOf") -> None:
    """Refuse a coalition whose loss is decided by rounding alone.

    Logits of 1e14 that nearly cancel give a loss that means nothing: it may be 34 or 84 million, depending on the order
    of additions. Only a client with very large numbers causes this, so the coalition is tried in which it counts most.
    """
    models, over = {**round_.client_models, **round_.apart_models}, task.judged_by.over_classes
    if over is None:  # only losses of differences between logits can cancel
        return
    present = np.flatnonzero(mixtures.memberships.any(axis=0)).tolist()
    for client in [k for k in present if k in models and _is_outlying(models[k], round_)]:
        row = int(mixtures.of_clients[:, client].argmax())
        members = np.flatnonzero(mixtures.memberships[row]).tolist()
        if not set(members) <= models.keys():
            continue
        with torch.inference_mode():
            some = slice(0, min(N_ROUNDED, task.batch_size))
            outputs, labels = task.outputs(model_of(row), some), task.labels[some]
            loss = abs(float(task.judged_by.criterion.quality(outputs, labels)))
        largest = float(outputs.amax(dim=over).abs().max())  # a class that is masked by −1e9 does no harm
        if UNSURE * max(1.0, loss) < largest * torch.finfo(outputs.dtype).eps / 2 < np.inf:
            raise ClientModelError(
                client,
                f"round {round_.entry.number}, coalition {members}: the model gives outputs of up to {largest:.1e}, so "
                f"rounding alone decides its loss ({loss:.3g}); leave out client {client}, whose numbers are "
                f"{OUTLYING:g} times larger than the global model's or more",
            )


def _is_outlying(model: Model, round_: Round) -> bool:
    """Whether some tensor has far larger numbers than the global model's; NaN is found elsewhere."""
    pairs = [(tensor, round_.global_model[name]) for name, tensor in model.items() if tensor.is_floating_point()]
    return any(_largest(tensor) > OUTLYING * max(1.0, _largest(usual)) for tensor, usual in pairs)


def _largest(tensor: torch.Tensor) -> float:
    return max(abs(float(end)) for end in tensor.aminmax()) if tensor.numel() else 0.0


ModelOf = Callable[[int], Model]
"""Makes the model of the coalition in a row; the next one may overwrite it."""


def mixer(round_: Round, mixtures: Mixtures, is_large: bool) -> ModelOf:
    """Sums models in float64, which takes six times as long; large ones in their own precision, into one buffer."""
    models, start = {**round_.client_models, **round_.apart_models}, round_.global_model
    mixed = partial(mix_into, {name: torch.empty_like(tensor) for name, tensor in start.items()}) if is_large else mix
    return lambda row: mixed(start, models, mixtures.of_clients[row], float(mixtures.of_global[row]))


def is_large(model: Model) -> bool:
    """Whether models of this size are summed in their own precision."""
    return sum(tensor.numel() for tensor in model.values()) > MOST_IN_FLOAT64


def mix(global_model: Model, models: dict[int, Model], of_clients: NDArray[np.float64], of_global: float) -> Model:
    """One mixture of models, summed in float64; integers are rounded, as servers do."""
    members = _members(models, of_clients)
    return {
        name: _summed([(of_global, like), *((float(of_clients[k]), models[k][name]) for k in members)])
        for name, like in global_model.items()
    }


def mix_into(
    buffer: Model,
    global_model: Model,
    models: dict[int, Model],
    of_clients: NDArray[np.float64],
    of_global: float,
) -> Model:
    """As `mix`, but summed in the models' own precision and written into `buffer`; half precision in float64."""
    members = _members(models, of_clients)
    for name, like in global_model.items():
        mixed, parts = buffer[name], [(float(of_clients[k]), models[k][name]) for k in members]
        if like.dtype not in (torch.float32, torch.float64):
            mixed.copy_(_summed([(of_global, like), *parts]))
            continue
        if of_global:
            parts.append((of_global, like))
        (weight, first), *others = parts
        torch.mul(first, weight, out=mixed)
        for weight, tensor in others:
            mixed.add_(tensor, alpha=weight)
    return buffer


def _members(models: dict[int, Model], of_clients: NDArray[np.float64]) -> list[int]:
    """The clients in a mixture; each needs a model."""
    members = np.flatnonzero(of_clients).tolist()
    missing = sorted(set(members) - set(models))
    if missing:
        raise ModelError(f"clients {missing} have no model in this round, so no coalition with them can be measured")
    return members


def _summed(parts: list[tuple[float, torch.Tensor]]) -> torch.Tensor:
    """The weighted sum of tensors, in the dtype of the first."""
    (weight, like), *others = parts
    total = weight * like.to(torch.float64)
    for weight, tensor in others:
        total += weight * tensor.to(torch.float64)
    return total.to(like.dtype) if like.is_floating_point() else total.round().to(like.dtype)
