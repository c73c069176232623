"""Perceptrons have the graph that torch.export finds; whatever else there is to a module is left to torch.export."""

import pytest
import torch
from torch import nn

from fedworth.oracle.fast.graph import export, operation, shape_of
from fedworth.oracle.fast.layered import layered
from fedworth.oracle.fast.sections import cut

IMAGES, ROWS = torch.randn(5, 1, 4, 4), torch.randn(5, 16)
RELU, TANH = nn.ReLU(), nn.Sequential(nn.Tanh())
PERCEPTRONS = {
    "logistic": (nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), IMAGES),
    "one layer alone": (nn.Linear(16, 3), ROWS),
    "without biases": (nn.Sequential(nn.Linear(16, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)), ROWS),
    "every activation": (
        nn.Sequential(
            nn.Flatten(), nn.Linear(16, 8), nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.GELU(), nn.GELU("tanh"),
            nn.Sequential(nn.SiLU(), nn.Tanh(), nn.Sigmoid()), nn.Linear(8, 3),
        ),
        IMAGES,
    ),
    "one object in two places": (
        nn.Sequential(
            nn.Linear(16, 8), RELU, nn.Linear(8, 8), RELU, nn.Linear(8, 8), TANH, nn.Linear(8, 8), TANH, nn.Linear(8, 3)
        ),
        ROWS,
    ),
}  # fmt: skip


def steps(exported):
    """What is called, on which tensors of the model, with which numbers, and what shape comes of it."""
    return [
        (
            operation(node),
            [exported.tensor_names[n] for n in node.all_input_nodes if n in exported.tensor_names],
            [number for number in node.args if isinstance(number, float)],
            {name: value for name, value in node.kwargs.items() if value != "none"},
            shape_of(node)[1:],
        )
        for node in exported.graph_module.graph.nodes
        if node.op == "call_function" and operation(node) not in ("sym_size", "view", "flatten")
    ]


@pytest.mark.parametrize(("module", "inputs"), PERCEPTRONS.values(), ids=PERCEPTRONS)
def test_a_perceptron_has_the_graph_that_torch_export_finds(module, inputs):
    own, exported = layered(module.eval(), inputs), export(module.eval(), inputs)
    assert own is not None
    assert steps(own) == steps(exported)
    assert torch.equal(own.graph_module(*own.constants.values(), inputs)[0], module(inputs))


@pytest.mark.parametrize(("module", "inputs"), PERCEPTRONS.values(), ids=PERCEPTRONS)
def test_it_is_cut_at_the_same_place(module, inputs):
    varying = set(module.state_dict())
    graphs = layered(module.eval(), inputs), export(module.eval(), inputs)
    own, exported = (cut(graph, varying) for graph in graphs if graph is not None)
    assert own.prefix is not None
    assert exported.prefix is not None
    assert [node.name for node in own.prefix.gives] == [node.name for node in exported.prefix.gives]
    assert own.batch_size == exported.batch_size
    assert (own.constants is None, own.rest is None) == (exported.constants is None, exported.rest is None)


def test_dropout_at_rest_is_nothing():
    module = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.5), nn.Identity(), nn.Linear(8, 3)).eval()
    assert [name for name, *_ in steps(layered(module, ROWS))] == ["linear", "linear"]


class Doubled(nn.Linear):
    """A layer that does something else than its kind."""

    def forward(self, inputs):
        return 2 * super().forward(inputs)


def hooked():
    module = nn.Sequential(nn.Linear(16, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


def tied():
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    module[2].weight = module[0].weight
    return module


def repeated():
    layer = nn.Linear(16, 16)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Doubled(16, 3), ROWS),
        (hooked(), ROWS),
        (tied(), ROWS),
        (repeated(), ROWS),
        (nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), ROWS),
        (nn.Sequential(nn.Linear(4, 3)), IMAGES),
        (nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3)), torch.randn(5, 1, 4)),
        (nn.Sequential(nn.Identity()), ROWS),
        (nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(48, 3)), torch.ones(5, 16, dtype=torch.int64)),
    ],
)
def test_whatever_else_there_is_to_a_module_is_left_to_torch_export(module, inputs):
    assert layered(module, inputs) is None
