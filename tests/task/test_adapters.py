"""Federations that exchange only part of a module: adapters, a head. The rest is the module's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.errors import ModelError, UsageError
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.recording.recorder import record_into
from fedworth.task.modules import copied
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from tests.support.tasks import Wide
from tests.support.zoo import all_mixtures, round_of

WANTED, WEIGHTS = all_mixtures("samples"), ("weight", "bias")


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter as PEFT names it, and a buffer that no state dict holds."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.head: nn.Module = nn.Linear(5, 3)
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


class Saved(nn.Module):
    """A layer as PEFT's `modules_to_save` wraps it: a trained copy beside the original, which is not used any more."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.original_module, self.modules_to_save = layer, nn.ModuleDict({"default": copied(layer)})

    def forward(self, x):
        return self.modules_to_save["default"](x)


class WithHead(Adapted):
    """As PEFT makes a sequence classifier: adapters, whose B is 0 at first, and a head of its own."""

    def __init__(self):
        super().__init__()
        self.head, self.norm = Saved(self.head), nn.BatchNorm1d(3)
        self.spare: nn.Module = nn.Linear(2, 2)
        nn.init.zeros_(self.lora_B["default"].get_parameter("weight"))

    def forward(self, x):
        return self.norm(super().forward(x))


TRAINED = ["lora_A.default.weight", "lora_B.default.weight", *(f"head.modules_to_save.default.{k}" for k in WEIGHTS)]
AS_PEFT_SAVES = ["lora_A.weight", "lora_B.weight", "head.weight", "head.bias"]


def federation_of(folder, module, own, sent):
    """Two rounds of three clients that send these tensors of the module under other names."""
    model = {name: module.state_dict()[key].clone() for key, name in zip(own, sent, strict=True)}
    recorder, generator = record_into(folder, aggregation="uniform"), torch.Generator().manual_seed(5)
    for _ in range(2):
        recorder.start_round(model, asked=["a", "b", "c"])
        answers = [_moved(model, generator) for _ in range(3)]
        for name, answer in zip("abc", answers, strict=True):
            recorder.client_model(name, answer, n_samples=10)
        recorder.end_round()
        mean = {key: torch.stack([a[key].double() for a in answers]).mean(0) for key in model}
        model = {key: tensor.to(model[key].dtype) for key, tensor in mean.items()}
    recorder.close(model)
    return Ledger.open(folder), model


def _moved(model: Model, generator: torch.Generator) -> Model:
    return {
        name: t + 0.3 * torch.rand(t.shape, generator=generator) if t.is_floating_point() else t + 1
        for name, t in model.items()
    }


def head_task(exchanged):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Task(WithHead(), torch.randn(20, 6), torch.arange(20) % 3, exchanged=exchanged)


def loss_with(task, own, model):
    """The loss of the module with these tensors loaded by torch itself."""
    module = copied(task.module).eval()
    module.load_state_dict({**module.state_dict(), **dict(zip(own, model.values(), strict=True))})
    with torch.no_grad():
        return nn.functional.cross_entropy(module(task.inputs), task.labels).item()


@pytest.mark.parametrize(
    ("exchanged", "sent"),
    [
        (tuple(AS_PEFT_SAVES), AS_PEFT_SAVES),
        (TRAINED, AS_PEFT_SAVES),
        (TRAINED[::-1], TRAINED),
        ({*AS_PEFT_SAVES}, TRAINED),
        (AS_PEFT_SAVES, ["0", "1", "2", "3"]),
        (dict(zip("wxyz", TRAINED, strict=True)), [*"wxyz"]),
    ],
    ids=["as PEFT saves", "the module's names", "in another order", "a set", "by place", "a dictionary"],
)
def test_the_gains_of_a_head_that_peft_saves_are_those_of_the_trained_copy(exchanged, sent, tmp_path):
    task = head_task(exchanged)
    ledger, last = federation_of(tmp_path / "l", task.module, TRAINED, sent)
    valued = Federation(ledger, task).value("fedsv")
    first = {name: task.module.state_dict()[name] for name in TRAINED}
    gain = loss_with(task, TRAINED, first) - loss_with(task, TRAINED, last)
    assert abs(gain) > 0.01
    assert valued.values.sum() == pytest.approx(gain, abs=1e-6)
    assert not any("no output" in note for note in valued.notes)


def test_a_guessed_tensor_that_moves_no_output_is_refused(tmp_path):
    class Renamed(WithHead):
        """Its unused layer stands under a name that is longer by one part."""

        def __init__(self):
            super().__init__()
            self.spare = nn.ModuleDict({"kept": nn.Linear(2, 2)})

    task = Task(Renamed(), torch.randn(20, 6), torch.arange(20) % 3, exchanged=["lora_B.weight", "spare.weight"])
    own = ["lora_B.default.weight", "spare.kept.weight"]
    ledger, _ = federation_of(tmp_path / "l", task.module, own, ["lora_B.weight", "spare.weight"])
    with pytest.raises(
        ModelError, match=r"'spare.weight' was taken for 'spare.kept.weight'.*exchanged=\{'spare.weight"
    ):
        Federation(ledger, task)
    said = replace(task, exchanged=dict(zip(["lora_B.weight", "spare.weight"], own, strict=True)))
    assert any("1 of 2 exchanged tensors change no output" in note for note in Federation(ledger, said).notes)


def test_tensors_under_their_own_names_may_be_unused_but_not_all_of_them(tmp_path):
    """Batch norm with its counter is exchanged like any tensor."""
    module = head_task(None).module
    own = [name for name in module.state_dict() if name.startswith(("norm", "spare"))]
    ledger, _ = federation_of(tmp_path / "l", module, own, own)
    notes = Federation(ledger, head_task(own)).notes
    assert [note for note in notes if "2 of 6 exchanged tensors change no output" in note and "spare.bias" in note]
    idle = [name for name in own if "spare" in name]
    ledger, _ = federation_of(tmp_path / "m", module, idle, idle)
    with pytest.raises(ModelError, match="every value would be 0"):
        Federation(ledger, head_task("spare"))


def test_another_order_of_the_exchanged_names_is_another_task():
    found = {
        head_task(names).fingerprint for names in (TRAINED, TRAINED[::-1], dict(zip("wxyz", TRAINED, strict=True)))
    }
    assert len(found) == 3
    assert head_task(TRAINED).fingerprint == head_task(tuple(AS_PEFT_SAVES)).fingerprint
