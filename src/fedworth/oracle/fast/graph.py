"""What a module does with its tensors: exported once, every node judged by how it depends on the clients' models.

In: a module, one batch of samples, and the names of the tensors that vary between models. Out: for each
node of the exported graph whether its value v(w), as a function of the varying tensors w, is

    CONST       the same for every coalition: samples, constants, tensors equal in all models, and what they give
    AFFINE      v(Σ_k c_k w_k) = Σ_k c_k v(w_k)   whenever Σ_k c_k = 1, so biases and other constants may enter
    NONLINEAR   anything else, and anything no rule speaks of

A rule says at which of a node's arguments affine values may stand for the node to be affine itself. Only "affine" is a
claim; a rule that is missing costs time, a rule that is wrong is caught by the self-check.
"""

import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from fedworth.oracle.fast.loosened import FIXED, loosen
from fedworth.task.modules import copied
from fedworth.task.samples import outputs_of

NO_MATRIX = "its output is not one matrix of logits"

Dependences = dict[fx.Node, "Dependence"]
NodeRule = Callable[[fx.Node, Set[int]], bool]
"""Is the node affine if the arguments at these positions are affine, and the others constant?"""


class Dependence(IntEnum):
    """How a value depends on the tensors that vary between models."""

    CONST = 0
    AFFINE = 1
    NONLINEAR = 2


class NotExportable(Exception):
    """Why a module has no graph to reason about; the loop serves it instead."""


@dataclass(frozen=True)
class Exported:
    """A module as a graph: placeholders are its tensors and the samples, the output is one row of logits a sample."""

    graph_module: fx.GraphModule
    samples: fx.Node
    output: fx.Node
    tensor_names: dict[fx.Node, str]  # placeholders of parameters and buffers, by their name in a model
    constants: dict[fx.Node, torch.Tensor]  # what a placeholder holds if a model does not say


def export(module: nn.Module, inputs: torch.Tensor) -> Exported:
    """The graph of a module in eval mode, for batches of any size; of two fixed sizes if torch.export insists."""
    example = inputs[torch.arange(3) % len(inputs)].clone()  # three: torch takes sizes 0 and 1 for constants
    if not _gives_matrix(module, example):  # seen sooner than a graph is made
        raise NotExportable(NO_MATRIX)
    try:
        return _checked(_program(module, example, {0: torch.export.Dim("batch", min=1)}))
    except NotExportable as refusal:
        batches = [inputs[torch.arange(n) % len(inputs)].clone() for n in FIXED]
        try:
            few, many = (_program(module, batch, None) for batch in batches)
        except NotExportable:
            raise refusal from None
        if not loosen(few.graph, many.graph, few.graph_signature.user_inputs[0]):
            raise
        few.graph_module.recompile()
        return _checked(few)


def _gives_matrix(module: nn.Module, example: torch.Tensor) -> bool:
    """Whether a module gives one row of logits a sample, as far as it can be run."""
    with suppress(Exception), torch.inference_mode():
        return outputs_of(module, {}, example).ndim == 2
    return True


def _program(module: nn.Module, example: torch.Tensor, sizes: dict[int, Any] | None) -> torch.export.ExportedProgram:
    """What torch.export makes of a module; with no decompositions, but relu_ becomes relu."""
    try:
        with _quiet():
            program: torch.export.ExportedProgram = torch.export.export(
                copied(module).eval().requires_grad_(False), (example,), dynamic_shapes=(sizes,), strict=False
            ).run_decompositions({})
            return program
    except Exception as error:  # torch.export refuses with whatever it trips over
        reason = str(error).strip().partition("\n")[0][:160]
        raise NotExportable(f"torch.export refuses it ({type(error).__name__}: {reason})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export warns of its own internals and prints the graph it gives up on; neither is for the user."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _checked(program: torch.export.ExportedProgram) -> Exported:
    """The program, if it is one that sections can be made of."""
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise NotExportable("its forward pass changes its own buffers or inputs")
    nodes = {node.name: node for node in program.graph.nodes}
    (*_, last) = program.graph.nodes
    outputs = last.all_input_nodes
    if len(outputs) != 1 or len(signature.user_outputs) != 1 or len(shape_of(outputs[0])) != 2:
        raise NotExportable(NO_MATRIX)
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    named = {nodes[i.arg.name]: i.target for i in signature.input_specs if i.kind in kinds and i.target}
    held = {**program.constants, **program.state_dict}
    constants = {
        nodes[i.arg.name]: held[i.target] for i in signature.input_specs if i.kind != InputKind.USER_INPUT and i.target
    }
    samples = nodes[signature.user_inputs[0]]
    graph_module = program.graph_module
    return Exported(graph_module, samples, outputs[0], named, {n: t.detach() for n, t in constants.items()})


def shape_of(node: fx.Node) -> tuple[Any, ...]:
    """A tensor's shape, its batch size a symbol; () for what is no tensor."""
    if "shape" in node.meta:
        return tuple(node.meta["shape"])
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def operation(node: fx.Node) -> str:
    """The name of what a node calls, without namespace and overload: linear, relu, getitem."""
    return getattr(node.target, "__name__", str(node.target)).split(".")[0]


def _wherever(*positions: int) -> NodeRule:
    """Affine jointly in these arguments."""
    return lambda _, at: at <= set(positions)


def _bilinear(first: int, second: int) -> NodeRule:
    """Affine in all its arguments, but not in these two at once."""
    return lambda _, at: not {first, second} <= at


def _divides(node: fx.Node, at: Set[int]) -> bool:
    return at == {0} and node.kwargs.get("rounding_mode") is None


def _widens(node: fx.Node, at: Set[int]) -> bool:
    """Rounding to a narrower type is not affine."""
    source, target = node.all_input_nodes[0].meta["val"].dtype, node.meta["val"].dtype
    return at == {0} and torch.promote_types(source, target) == target


def _normalises(_: fx.Node, at: Set[int]) -> bool:
    """(x − mean)/√(var + ε) · w + b: affine in x, b and mean, or in w and b."""
    return at <= {0, 2, 3} or at <= {1, 2}


def _pads(node: fx.Node, at: Set[int]) -> bool:
    return at == {0} and (len(node.args) < 3 or node.args[2] == "constant")


_REARRANGING = (
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "permute", "transpose", "t", "movedim", "expand",
    "repeat", "unsqueeze", "squeeze", "slice", "select", "narrow", "index", "index_select", "gather", "chunk",
    "split", "split_with_sizes", "unbind", "flip", "roll", "clone", "contiguous", "alias", "detach",
    "lift_fresh_copy", "constant_pad_nd",
)  # fmt: skip
_SUMMING = (
    "sum", "mean", "neg", "cumsum", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d",
    "masked_fill", "embedding",
)  # fmt: skip
_PRODUCTS = (
    "linear", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "mul", "matmul", "mm", "bmm", "mv", "dot",
)  # fmt: skip
_SHAPED = ("zeros_like", "ones_like", "full_like")

RULES: dict[str, NodeRule] = {
    **{name: _wherever(0) for name in (*_REARRANGING, *_SUMMING)},
    **{name: _bilinear(0, 1) for name in _PRODUCTS},
    **{name: _bilinear(1, 2) for name in ("addmm", "baddbmm", "addmv")},
    **{name: _wherever(0, 1) for name in ("add", "sub", "rsub", "cat", "stack")},
    **{name: _widens for name in ("to", "_to_copy", "type_as")},
    "div": _divides,
    "where": _wherever(1, 2),
    "pad": _pads,
    "layer_norm": _wherever(2, 3),
    "group_norm": _wherever(2, 3),
    "_native_batch_norm_legit_no_training": _normalises,
}


def dependences(exported: Exported, varying: Set[str]) -> Dependences:
    """How each node depends on the tensors named `varying`."""
    found: Dependences = {}
    for node in exported.graph_module.graph.nodes:
        if node.op == "placeholder":
            found[node] = _of_tensor(node, exported.tensor_names.get(node) in varying)
        else:
            found[node] = _of_operation(node, found)
    return found


def _of_tensor(node: fx.Node, varies: bool) -> Dependence:
    """Integers are rounded after averaging, so their average is not affine."""
    if not varies:
        return Dependence.CONST
    return Dependence.AFFINE if node.meta["val"].is_floating_point() else Dependence.NONLINEAR


def _of_operation(node: fx.Node, found: Dependences) -> Dependence:
    worst = max((found[n] for n in node.all_input_nodes), default=Dependence.CONST)
    if worst != Dependence.AFFINE or node.op == "output" or node.target is operator.getitem:
        return worst
    if operation(node).startswith("sym_") or operation(node) in _SHAPED:  # a size is no value
        return Dependence.CONST
    in_keywords = any(found[n] for value in node.kwargs.values() for n in _nodes_in(value))
    at = {i for i, value in enumerate(node.args) if any(found[n] for n in _nodes_in(value))}
    rule = RULES.get(operation(node))
    is_affine = rule is not None and not in_keywords and rule(node, at)
    return Dependence.AFFINE if is_affine else Dependence.NONLINEAR


def _nodes_in(value: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.map_arg(value, nodes.append)
    return nodes
