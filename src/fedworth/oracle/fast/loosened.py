"""One graph for batches of any size, from two graphs of batches of fixed size.

torch.export refuses to leave the size of a batch open where a module asks for it as a number, by `len(samples)` say; to
a fixed size it has no objection. What depends on the size is what differs between two exports: a number a·n in the
one and a·m in the other, n and m the sizes, is a times the size of whatever batch comes. Anything else that differs is
refused. A module that does something else with larger batches is not seen through; the self-check has more samples than
either export, and a sample's logits must not depend on the batch it is in.
"""

import operator
from typing import Any

import torch
from torch import fx

ROWS = "rows"
"""What stands for the number of samples in a shape."""

FIXED = (5, 7)
"""The sizes of the two batches."""


class _Differs(Exception):
    """Two graphs differ in more than the size of their batches."""


def loosen(few: fx.Graph, many: fx.Graph, samples: str) -> bool:
    """Make the first graph one of any size of batch; False if it cannot be. `samples` names the placeholder."""
    if [(n.op, n.target, n.name) for n in few.nodes] != [(n.op, n.target, n.name) for n in many.nodes]:
        return False
    pairs = list(zip(few.nodes, many.nodes, strict=True))
    (start,) = [node for node in few.nodes if node.name == samples]
    placeholders = [node for node in few.nodes if node.op == "placeholder"]
    with few.inserting_after(placeholders[-1]):
        size = few.call_function(torch.ops.aten.sym_size.int, (start, 0))
    try:
        for node, other in pairs:
            _loosen_node(few, node, other, size)
    except _Differs:
        return False
    few.eliminate_dead_code()
    return True


def _loosen_node(graph: fx.Graph, node: fx.Node, other: fx.Node, size: fx.Node) -> None:
    """Numbers among the arguments and in the shape of a node that are multiples of the size, as such."""
    value, twin = node.meta.get("val"), other.meta.get("val")
    if isinstance(value, torch.Tensor) and isinstance(twin, torch.Tensor):
        node.meta["shape"] = tuple(n if n == m else ROWS for n, m in zip(value.shape, twin.shape, strict=True))
    if node.op == "call_function":
        with graph.inserting_before(node):
            node.args = tuple(_open(graph, a, b, size) for a, b in zip(node.args, other.args, strict=True))
        if {k: str(v) for k, v in node.kwargs.items()} != {k: str(v) for k, v in other.kwargs.items()}:
            raise _Differs


def _open(graph: fx.Graph, few: Any, many: Any, size: fx.Node) -> Any:
    """An argument with what is a multiple of the size written as one."""
    if isinstance(few, list | tuple) and isinstance(many, list | tuple) and len(few) == len(many):
        return type(few)(_open(graph, a, b, size) for a, b in zip(few, many, strict=True))
    if str(few) == str(many):
        return few
    if type(few) is not int or type(many) is not int or (few % FIXED[0], many % FIXED[1]) != (0, 0):
        raise _Differs
    times = few // FIXED[0]
    if times != many // FIXED[1]:
        raise _Differs
    return size if times == 1 else graph.call_function(operator.mul, (size, times))
