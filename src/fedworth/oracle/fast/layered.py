"""The graph of a module that is plainly one layer after the other, read off its layers.

In: a module and the samples. Out: what `graph.export` gives, or nothing where the module is not one of these. For
perceptrons torch.export finds the same graph, but loads the compiler of torch first, which takes longer than all that a
short run computes. Layers of other kinds, hooks, a tensor in two places: all that is left to torch.export. The
self-check holds either graph to what the module itself gives.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from fedworth.oracle.fast.graph import Exported
from fedworth.oracle.fast.loosened import ROWS

aten = torch.ops.aten
SIMPLE = {
    nn.ReLU: aten.relu.default,
    nn.SiLU: aten.silu.default,
    nn.Tanh: aten.tanh.default,
    nn.Sigmoid: aten.sigmoid.default,
}
KNOWN = (nn.Identity, nn.Dropout, nn.Flatten, nn.Linear, nn.GELU, nn.LeakyReLU, *SIMPLE)

Shape = tuple[Any, ...]


def layered(module: nn.Module, inputs: torch.Tensor) -> Exported | None:
    """The graph of a module in eval mode, if known layers are all that there is to it."""
    layers = list(_layers(module, ""))
    tensors = dict(module.named_parameters())
    n_places = len(list(module.named_parameters(remove_duplicate=False)))
    if None in layers or n_places > len(tensors) or list(module.buffers()) or not inputs.is_floating_point():
        return None
    graph = fx.Graph()
    nodes = {name: _said(graph.placeholder(f"p{k}"), tuple(t.shape), t) for k, (name, t) in enumerate(tensors.items())}
    samples = _said(graph.placeholder("samples"), (ROWS, *inputs.shape[1:]), inputs)
    value: fx.Node | None = samples
    for prefix, layer in filter(None, layers):
        own = [nodes[name] for name in (f"{prefix}weight", f"{prefix}bias") if name in nodes]
        value = None if value is None else _applied(graph, layer, own, value)
    if value is None or value is samples or len(value.meta["shape"]) != 2:
        return None
    graph.output((value,))
    constants = {nodes[name]: t.detach() for name, t in tensors.items()}
    names = {node: name for name, node in nodes.items()}
    return Exported(fx.GraphModule(nn.Module(), graph), samples, value, names, constants)


def _layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module] | None]:
    """The layers in their order, each with what its tensors' names begin with; None for what is not only layers."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        yield None
    elif type(module) is nn.Sequential:
        for name, layer in zip(module._modules, module, strict=True):  # named_children has each object only once
            yield from _layers(layer, f"{prefix}{name}.")
    else:
        yield (prefix, module) if type(module) in KNOWN else None  # a class that inherits may do something else


def _applied(graph: fx.Graph, layer: nn.Module, tensors: list[fx.Node], value: fx.Node) -> fx.Node | None:
    """What a layer makes of a value; nothing if its kind, or the shape it gets, is not known here."""
    call, shape = partial(_called, graph, value), value.meta["shape"]
    match layer:
        case nn.Identity() | nn.Dropout():
            return value
        case nn.Flatten(start_dim=1, end_dim=-1) if len(shape) > 1:
            return value if len(shape) == 2 else call(aten.flatten.using_ints, (1,), (ROWS, math.prod(shape[1:])))
        case nn.Linear(out_features=n) if len(shape) == 2:
            return call(aten.linear.default, tensors, (ROWS, n))
        case nn.GELU(approximate=form):
            return call(aten.gelu.default, (), shape, approximate=form)
        case nn.LeakyReLU(negative_slope=slope):
            return call(aten.leaky_relu.default, (slope,), shape)
    simple = SIMPLE.get(type(layer))
    return None if simple is None else call(simple, (), shape)


def _called(graph: fx.Graph, value: fx.Node, target: Any, rest: Sequence[Any], shape: Shape, **options: Any) -> fx.Node:
    name = str(target).split(".")[1]
    node = graph.create_node("call_function", target, (value, *rest), options, name=name)
    return _said(node, shape, value.meta["val"])


def _said(node: fx.Node, shape: Shape, like: torch.Tensor) -> fx.Node:
    """The node, with what torch.export would say of its value."""
    sizes = [1 if n is ROWS else n for n in shape]
    node.meta["shape"], node.meta["val"] = shape, torch.empty(sizes, dtype=like.dtype, device="meta")
    return node
