"""Federations that exchange only part of a module: adapters, a head. The rest is the module's own."""

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.errors import ModelError, UsageError
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.task import Task
from tests.support.tasks import Wide
from tests.support.zoo import all_mixtures, round_of

WANTED = all_mixtures("samples")


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter as PEFT names it, and a buffer that no state dict holds."""

    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(6, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 5, bias=False)})
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x):
        low = self.lora_B["default"](self.lora_A["default"](x))
        return self.head(torch.relu(self.base(x) + self.scale * low))


def task_and_round(exchanged="lora_"):
    """The task, and a round whose models hold the adapters alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module, inputs = Adapted(), torch.randn(20, 6)
    task = Task(module, inputs, torch.arange(20) % 3, exchanged=exchanged)
    whole = round_of(module)
    return task, Round(whole.entry, only(whole.global_model), {k: only(m) for k, m in whole.client_models.items()}, {})


def only(model: Model) -> Model:
    return {name: tensor for name, tensor in model.items() if "lora_" in name}


def shortened(model: Model) -> Model:
    return {name.replace(".default", ""): tensor for name, tensor in model.items()}


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
def test_adapters_are_valued_over_the_modules_own_weights(oracle):
    task, round_ = task_and_round()
    whole = {**task.module.state_dict(), **round_.global_model}
    models = {k: {**whole, **model} for k, model in round_.client_models.items()}
    expected = Wide(task).utilities(Round(round_.entry, whole, models, {}), WANTED, "loss")
    assert np.ptp(expected) > 1e-3
    assert oracle(task).utilities(round_, WANTED).sum(axis=1) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
def test_names_as_peft_shortens_them_are_understood(oracle):
    task, round_ = task_and_round()
    short = {k: shortened(model) for k, model in round_.client_models.items()}
    found = oracle(task).utilities(Round(round_.entry, shortened(round_.global_model), short, {}), WANTED).sum(axis=1)
    assert found.tolist() == oracle(task).utilities(round_, WANTED).sum(axis=1).tolist()
    named, _ = task_and_round(["lora_A.weight", "lora_B.default.weight"])
    assert list(named.state) == ["lora_A.default.weight", "lora_B.default.weight"]


def test_a_part_that_nobody_named_is_refused_with_what_to_say():
    task, round_ = task_and_round(None)
    with pytest.raises(ModelError, match=r"exchanges only part of the module.*Task\(…, exchanged='lora_'\)"):
        LoopOracle(task).utilities(round_, WANTED).sum(axis=1)


def test_a_part_of_the_part_is_refused():
    task, round_ = task_and_round()
    less = {name: tensor for name, tensor in round_.global_model.items() if "lora_A" in name}
    with pytest.raises(ModelError, match="1 tensors are missing or extra"):
        LoopOracle(task).utilities(Round(round_.entry, less, {}, {}), WANTED).sum(axis=1)


@pytest.mark.parametrize(
    ("exchanged", "message"), [("adapter", "no tensor of the module"), (["x"], "'x' is no tensor")]
)
def test_names_that_the_module_does_not_have_are_refused(exchanged, message):
    task, round_ = task_and_round(exchanged)
    with pytest.raises(UsageError, match=message):
        LoopOracle(task).utilities(round_, WANTED).sum(axis=1)


def test_the_modules_own_weights_are_part_of_the_task():
    task, _ = task_and_round()
    other, _ = task_and_round()
    with torch.no_grad():
        other.module.lora_A["default"].weight.add_(1)
    assert other.fingerprint == task.fingerprint
    with torch.no_grad():
        other.module.base.weight.add_(1)
    assert other.fingerprint != task.fingerprint


def test_a_buffer_that_no_model_holds_is_no_stumbling_block():
    """With the first layer frozen its values are kept from round to round, with the tensors behind them."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
            self.scale: torch.Tensor
            self.register_buffer("scale", torch.linspace(1, 2, 5), persistent=False)

        def forward(self, x):
            return self.head(self.scale * torch.tanh(self.first(x)))

    task = Task(Scaled(), torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3)
    round_, oracle = round_of(task.module, frozen=("first",)), FastOracle(task)
    expected = Wide(task).utilities(round_, WANTED, "loss")
    for _ in range(2):
        assert oracle.utilities(round_, WANTED).sum(axis=1) == pytest.approx(expected, abs=1e-6)
