"""The cut: a module's graph in three sections, each run as seldom as its dependence on the models allows.

    constants   once for a test set:      CONST values of the samples (a frozen backbone)
    prefix      once for a client:        AFFINE values that something nonlinear reads; a coalition's are the mean
    rest        once for a coalition:     all that follows, from averaged prefixes and averaged tensors

Only values of the samples are cut at: what depends on tensors alone is cheap, and made again from averaged tensors.
Whether a prefix is worth sharing is a matter of `costs`.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from torch import fx

from fedworth.errors import UtilityError
from fedworth.oracle.fast.graph import Dependence, Dependences, Exported, dependences, operation, shape_of
from fedworth.oracle.fast.mixing import MOST_TOGETHER
from fedworth.oracle.fast.tuning import tune

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
PRODUCTS = ("mm", "bmm", "matmul")
GATE_COST = 30
"""Time of a gate's exponential, in operations of a large product."""

CACHE_BYTES = 12 << 20
SMALLEST_BATCH, LARGEST_BATCH = 32, 1024


@dataclass(frozen=True)
class Section:
    """Part of a graph: what it reads, by node, and what it gives, in the order asked for."""

    graph_module: fx.GraphModule
    reads: tuple[fx.Node, ...]
    gives: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Sections:
    """A module, cut into sections. A section with nothing to do is None; without a rest, the prefix is the logits."""

    exported: Exported
    varying: frozenset[str]
    constants: Section | None
    prefix: Section | None
    rest: Section | None
    batch_size: int


def cut(exported: Exported, varying: Set[str], *, shares_prefix: bool = True) -> Sections:
    """The sections for models whose `varying` tensors differ; without `shares_prefix` all of them is rest."""
    found = dependences(exported, varying)
    of_samples = _of_samples(exported)
    front = _front(exported, found, of_samples) if shares_prefix else ()
    wanted = (exported.output,) if found[exported.output] != Dependence.CONST else ()
    kept = _kept(exported, (*front, *wanted), found, of_samples)
    is_whole = front == (exported.output,)
    rest = None if is_whole else _section(exported, (exported.output,), (*kept, *front), overwrites=front)
    return Sections(
        exported,
        frozenset(varying),
        _section(exported, kept, ()) if kept else None,
        _section(exported, front, kept) if front else None,
        rest,
        _batch_size(rest, front),
    )


def constant_tensors(sections: Sections) -> list[str]:
    """The names of the tensors that the constants are made from."""
    reads = () if sections.constants is None else sections.constants.reads
    return [sections.exported.tensor_names[node] for node in reads if node in sections.exported.tensor_names]


def prefix_of(sections: Sections) -> Section:
    """The prefix of sections that have one."""
    if sections.prefix is None:
        raise UtilityError(
            "a module without an affine prefix came to a route that shares it; report this, use the loop"
        )
    return sections.prefix


def flops(node: fx.Node) -> int:
    """Floating point operations of a node for one sample; 2 a weight and output, where there are weights."""
    if node.op != "call_function":
        return 0
    name = operation(node)
    if name in RECURRENT:
        return _recurrent_flops(node)
    if name == "linear" or (name.startswith("conv") and "transpose" not in name):
        weight = node.args[1]
        if not isinstance(weight, fx.Node):
            return numbers(node)
        return 2 * numbers(node) * math.prod(int(n) for n in shape_of(weight)[1:])
    if name in PRODUCTS and isinstance(node.args[0], fx.Node):
        return 2 * numbers(node) * int(shape_of(node.args[0])[-1])
    return numbers(node)


def _recurrent_flops(node: fx.Node) -> int:
    """Of all steps: 2 a weight, and an exponential for each gate, which has a row in both matrices of a layer."""
    weights = [n for n in node.all_input_nodes[1:] if isinstance(n.meta.get("val"), torch.Tensor) and _is_fixed(n)]
    n_steps = max((n for n in shape_of(node.all_input_nodes[0])[:-1] if isinstance(n, int)), default=1)
    n_gates = sum(int(shape_of(n)[0]) for n in weights if len(shape_of(n)) == 2) // 2
    return n_steps * (2 * sum(numbers(n) for n in weights) + GATE_COST * n_gates)


def _is_fixed(node: fx.Node) -> bool:
    return all(isinstance(n, int) for n in shape_of(node))


def numbers(node: fx.Node) -> int:
    """How many numbers a value has for one sample."""
    return math.prod(n if isinstance(n, int) else 1 for n in shape_of(node))


def _of_samples(exported: Exported) -> set[fx.Node]:
    """The nodes whose values depend on the samples themselves, not only on how many there are."""
    found = {exported.samples}
    for node in exported.graph_module.graph.nodes:
        is_size = node.op == "call_function" and operation(node).startswith("sym_")
        if not is_size and any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _front(exported: Exported, found: Dependences, of_samples: set[fx.Node]) -> tuple[fx.Node, ...]:
    """Affine values of the samples that something nonlinear reads, or else the logits."""
    if found[exported.output] == Dependence.AFFINE:
        return (exported.output,)
    return tuple(
        node
        for node in exported.graph_module.graph.nodes
        if found[node] == Dependence.AFFINE
        and node in of_samples
        and shape_of(node)
        and any(found[user] == Dependence.NONLINEAR for user in node.users)
    )


def _kept(
    exported: Exported, wanted: Sequence[fx.Node], found: Dependences, of_samples: set[fx.Node]
) -> tuple[fx.Node, ...]:
    """The last constant values of the samples on every way to `wanted`, if one row is one sample."""
    kept: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node in seen or node not in of_samples or node is exported.samples:
            continue
        seen.add(node)
        if found[node] == Dependence.CONST and _has_rows(node):
            kept[node] = None
        else:
            waiting += node.all_input_nodes
    return tuple(sorted(kept, key=lambda node: node.name))


def _has_rows(node: fx.Node) -> bool:
    shape = shape_of(node)
    return bool(shape) and not isinstance(shape[0], int) and all(isinstance(n, int) for n in shape[1:])


def _section(
    exported: Exported, wanted: Sequence[fx.Node], given: Sequence[fx.Node], overwrites: Sequence[fx.Node] = ()
) -> Section:
    """The graph that makes `wanted` from placeholders and what is `given`."""
    needed = _needed(wanted, given)
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in exported.graph_module.graph.nodes:
        if node in needed and (node in given or node.op == "placeholder"):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = node.meta
    for node in exported.graph_module.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[node] for node in wanted))
    reads = tuple(node for node in copies if copies[node].op == "placeholder")
    tune(graph, {copies[node] for node in overwrites if node in copies})
    return Section(fx.GraphModule(exported.graph_module, graph), reads, tuple(wanted))


def _needed(wanted: Sequence[fx.Node], given: Sequence[fx.Node]) -> set[fx.Node]:
    needed: set[fx.Node] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [] if node in given else node.all_input_nodes
    return needed


def _batch_size(rest: Section | None, front: Sequence[fx.Node]) -> int:
    """As many samples as keep the largest value of the rest in the cache, a power of two."""
    nodes = () if rest is None else tuple(rest.graph_module.graph.nodes)
    made = [node for node in nodes if node.op == "call_function"]
    sizes = [numbers(node) for node in made] + [MOST_TOGETHER * numbers(node) for node in front]
    fits = CACHE_BYTES // (4 * max((1, *sizes)))
    return min(max(SMALLEST_BATCH, 1 << max(0, fits.bit_length() - 1)), LARGEST_BATCH)
