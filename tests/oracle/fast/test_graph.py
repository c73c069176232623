"""How nodes depend on the models, and where modules are cut."""

import math

import pytest
import torch
from torch import nn

from fedworth.oracle.fast.costs import cheapest_first, prices
from fedworth.oracle.fast.graph import Dependence, NotExportable, dependences, export, operation
from fedworth.oracle.fast.sections import cut, flops
from tests.support.zoo import ZOO, task_of


def judged(module, inputs, frozen=()):
    """The dependence of each operation, by its name, when all tensors vary but the frozen."""
    exported = export(module.eval(), inputs)
    varying = {name for name in module.state_dict() if not name.startswith(frozen or ("-",))}
    found = dependences(exported, varying)
    return {operation(node): found[node].name for node in found if node.op == "call_function"}


class Function(nn.Module):
    """Some function of the samples and of three parameters."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.a, self.b, self.v = (nn.Parameter(torch.rand(4)) for _ in range(3))

    def forward(self, x):
        return self.function(x, self)


AFFINE = {
    "sum with a constant": lambda x, m: x + m.a - 3 * m.b,
    "product with the samples": lambda x, m: x * m.a / 2,
    "where the samples decide": lambda x, m: torch.where(x > 0, x * m.a, m.b),
    "masked by the samples": lambda x, m: (x * m.a).masked_fill(x > 0, 2.0),
    "padded and cut": lambda x, m: nn.functional.pad(x * m.a, (1, 1), value=3)[:, 1:4],
    "joined": lambda x, m: torch.cat([x * m.a, x + m.b], 1),
    "mean and cumulated": lambda x, m: (x * m.a).cumsum(1) + (x * m.b).mean(1, keepdim=True),
    "normalised samples": lambda x, m: nn.functional.layer_norm(x, (4,), m.a, m.b),
    "widened": lambda x, m: (x * m.a).double(),
    "batch norm of shifted samples": lambda x, m: nn.functional.batch_norm(x + m.a, m.b, torch.ones_like(m.b)),
}
NONLINEAR = {
    "product of two": lambda x, m: x * m.a * m.b,
    "square": lambda x, m: (x * m.a) ** 2,
    "quotient": lambda x, m: x / (m.a + 2),
    "rounded quotient": lambda x, m: torch.div(x * m.a, 2, rounding_mode="floor"),
    "where they decide": lambda x, m: torch.where(x * m.a > 0, x, x + 1),
    "narrowed": lambda x, m: (x * m.a).half().float(),
    "reflected": lambda x, m: nn.functional.pad(x * m.a, (1, 1), mode="reflect"),
    "variance": lambda x, m: nn.functional.batch_norm(x, torch.zeros(4), m.v),
    "normalised": lambda x, m: nn.functional.layer_norm(x * m.a, (4,)),
    "unknown": lambda x, m: torch.sin(x * m.a),
}


def output_of(function):
    module = Function(function)
    exported = export(module, torch.rand(5, 4))
    return dependences(exported, {"a", "b", "v"})[exported.output]


@pytest.mark.parametrize("name", AFFINE)
def test_averages_of_values_are_values_of_averages(name):
    assert output_of(AFFINE[name]) is Dependence.AFFINE
    module, x = Function(AFFINE[name]).double(), torch.rand(5, 4, dtype=torch.float64)
    models = [{n: torch.rand(4, dtype=torch.float64) for n in "abv"} for _ in range(3)]
    average = {n: sum((c * m[n] for c, m in zip((0.2, 0.5, 0.3), models, strict=True)), torch.zeros(4)) for n in "abv"}
    values = [torch.func.functional_call(module, model, (x,)) for model in (*models, average)]
    mean = 0.2 * values[0] + 0.5 * values[1] + 0.3 * values[2]
    torch.testing.assert_close(values[3], mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NONLINEAR)
def test_what_is_not_affine_is_not_called_so(name):
    assert output_of(NONLINEAR[name]) is Dependence.NONLINEAR


def test_the_frozen_part_of_a_network_is_constant():
    task = task_of(*ZOO["cnn"][:2])
    found = judged(task.module, task.inputs, frozen=("0.",))
    assert found["conv2d"] == found["relu"] == found["max_pool2d"] == found["view"] == "CONST"
    assert found["linear"] == "AFFINE"


def test_integer_tensors_are_rounded_so_not_affine():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.tensor(3))

        def forward(self, x):
            return x * self.count

    exported = export(Counting(), torch.rand(5, 4))
    assert dependences(exported, {"count"})[exported.output] is Dependence.NONLINEAR


def test_data_dependent_control_flow_has_no_graph_and_torch_does_not_print_it(capfd):
    with pytest.raises(NotExportable, match=r"torch\.export refuses it"):
        export(ZOO["branching"][0](), torch.rand(5, 8))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("function", [lambda x, m: x.sum() + m.a, lambda x, m: (x + m.a, x)])
def test_a_module_must_give_one_matrix_of_logits(function):
    with pytest.raises(NotExportable, match="not one matrix of logits"):
        export(Function(function), torch.rand(5, 4))


def test_a_module_that_changes_its_buffers_has_no_graph():
    class Remembering(nn.Module):
        seen: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen.add_(1)
            return x + self.seen

    with pytest.raises(NotExportable, match="changes its own buffers"):
        export(Remembering(), torch.rand(5, 4))


def test_a_single_test_sample_is_enough_to_export():
    exported = export(nn.Linear(4, 2), torch.rand(1, 4))
    assert exported.graph_module.graph is not None


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("logistic", ["linear"]),
        ("pooled convolution", ["avg_pool2d"]),
        ("two linear", ["linear"]),
        ("tokens", ["add"]),
        ("gated", ["getitem", "getitem"]),
        ("residual", ["conv2d"]),
        ("recurrent", []),
        ("input norm", []),
    ],
)
def test_modules_are_cut_where_they_stop_being_affine(name, operations):
    task = task_of(*ZOO[name][:2])
    sections = cut(export(task.module, task.inputs), frozenset(task.module.state_dict()))
    gives = () if sections.prefix is None else sections.prefix.gives
    assert [operation(node) for node in gives] == operations


def way(sections, n_members):
    """The cheapest way without kernels."""
    found = prices(sections, n_members, model_bytes=0, n_together=32)
    del found["kernel"]
    return cheapest_first(found, math.inf)[0]


def test_a_prefix_pays_if_it_has_more_weights_than_averaging_takes():
    exported = export(nn.Sequential(nn.Linear(784, 9), nn.Tanh(), nn.Linear(9, 4)), torch.rand(5, 784))
    sections = cut(exported, {"0.weight", "0.bias", "2.weight", "2.bias"})
    assert sections.prefix is not None
    assert sum(flops(node) for node in sections.prefix.graph_module.graph.nodes) == 2 * 784 * 9
    assert {n: way(sections, n) for n in (1, 10, 1000)} == {1: "prefix", 10: "prefix", 1000: "graph"}
    narrow = export(nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 4)), torch.rand(5, 8))
    assert way(cut(narrow, {"0.weight", "0.bias", "2.weight", "2.bias"}), 1) == "graph"
