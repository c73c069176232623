"""Dtypes that drift: what a server averages or a client sends in other dtypes is evaluated in the module's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.errors import ModelError, UtilityError
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, fitted
from fedworth.recording.recorder import record_into
from fedworth.simulation.models import state_of
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings
from tests.support.federations import matrix_of_ledger


def a_task() -> Task:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    return Task(module, torch.randn(20, 4), torch.arange(20) % 3)


def moved(model, seed):
    """A model some way off, its counter at `seed`."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: tensor + torch.randn(tensor.shape, generator=rng).abs() if tensor.is_floating_point() else tensor + seed
        for name, tensor in model.items()
    }


def drifted(model):
    """As Flower gives it back: integers as float64; and everything else, as a careless client sends it."""
    return {name: tensor.to(torch.float64) for name, tensor in model.items()}


def recorded(folder, *, change):
    task = a_task()
    start = state_of(task.module)
    recorder = record_into(folder, aggregation="uniform")
    recorder.start_round(change(start), asked=["a", "b"])
    recorder.client_model("a", change(moved(start, 1)), 1)
    recorder.client_model("b", moved(start, 2), 1)
    recorder.end_round()
    return Ledger.open(folder)


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
def test_utilities_do_not_depend_on_the_dtypes_that_models_arrive_in(tmp_path, oracle):
    found = []
    for name, change in (("plain", dict), ("drifted", drifted)):
        ledger = recorded(tmp_path / name, change=change)
        found.append(matrix_of_ledger(ledger, oracle(a_task())).utilities)
    assert found[0] == pytest.approx(found[1], rel=1e-5, abs=1e-6)
    assert found[0].any()


def by_place(model):
    """As a list of arrays is recorded."""
    return {str(place): tensor for place, tensor in enumerate(model.values())}


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
def test_tensors_that_are_named_by_their_place_are_those_of_the_modules_state(tmp_path, oracle):
    found = []
    for name, change in (("named", dict), ("placed", by_place)):
        recorder, start = record_into(tmp_path / name, aggregation="uniform"), state_of(a_task().module)
        recorder.start_round(change(start), asked=["a", "b"])
        for k, client in enumerate("ab"):
            recorder.client_model(client, change(moved(start, k + 1)), 1)
        recorder.end_round()
        ledger = Ledger.open(tmp_path / name)
        found.append(matrix_of_ledger(ledger, oracle(a_task())).utilities)
    assert (found[0] == found[1]).all()


def test_more_arrays_than_the_module_has_tensors_are_refused(tmp_path):
    recorder = record_into(tmp_path / "l", aggregation="uniform")
    recorder.start_round({str(place): torch.zeros(2) for place in range(9)}, asked=["a"])
    recorder.end_round()
    with pytest.raises(ModelError, match="against the task's module"):
        fitted(Ledger.open(tmp_path / "l").open_round(0), a_task())


def test_counters_come_back_as_whole_numbers(tmp_path):
    ledger = recorded(tmp_path / "l", change=drifted)
    like = state_of(a_task().module)
    round_ = fitted(ledger.open_round(0), a_task())
    assert {name: tensor.dtype for name, tensor in round_.client_models[0].items()} == {
        name: tensor.dtype for name, tensor in like.items()
    }
    assert int(round_.client_models[0]["1.num_batches_tracked"]) == 1


def test_bfloat16_models_are_averaged_and_evaluated(tmp_path):
    task = a_task()
    module = task.module.to(torch.bfloat16)
    task = Task(module, task.inputs.to(torch.bfloat16), task.labels)
    recorder = record_into(tmp_path / "l", aggregation="uniform")
    recorder.start_round(state_of(module), asked=["a", "b"])
    for k, name in enumerate(["a", "b"]):
        sent = {n: t.to(module.state_dict()[n].dtype) for n, t in moved(state_of(module), k + 1).items()}
        recorder.client_model(name, sent, 1)
    recorder.end_round()
    ledger = Ledger.open(tmp_path / "l")
    assert ledger.entries[0].answered == (0, 1)
    assert matrix_of_ledger(ledger, LoopOracle(task)).utilities.any()


def test_a_global_model_of_another_module_is_refused(tmp_path):
    ledger = recorded(tmp_path / "l", change=dict)
    with pytest.raises(ModelError, match="against the task's module"):
        fitted(ledger.open_round(0), Task(nn.Linear(3, 4), torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)))


class Tied(nn.Module):
    """Two names for one tensor, as an embedding and the head of a language model."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, rows):
        return self.head(self.second(torch.relu(self.first(rows))))


def tied_ledger(folder, *, untied: str | None, unsent: str = ""):
    """Two rounds of three clients; one may send its tied tensors unequal, and the server averages them."""
    start = state_of(Tied())
    recorder = record_into(folder, aggregation="uniform")
    for _ in range(2):
        models = {name: moved(start, seed) for seed, name in enumerate("abc")}
        for name, model in models.items():
            model["second.weight"] = model["first.weight"] - (10.0 if name == untied else 0.0)
        recorder.start_round(without(start, unsent), asked=list(models))
        for name, model in models.items():
            recorder.client_model(name, without(model, unsent), n_samples=1)
        recorder.end_round()
        start = {name: torch.stack([model[name] for model in models.values()]).mean(0) for name in start}
    recorder.close(without(start, unsent))
    return Ledger.open(folder)


def without(model, name):
    return {key: tensor for key, tensor in model.items() if key != name}


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("kind", ["loop", "fast"])
@pytest.mark.parametrize("unsent", ["first.weight", "second.weight"])
def test_a_tied_tensor_that_is_sent_under_one_name_is_loaded_under_both(tmp_path, unsent, kind, exchanged):
    """As safetensors saves it; a module called with one name alone would keep its own tensor under the other."""
    ledger = tied_ledger(tmp_path / "l", untied=None, unsent=unsent)
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    module, labels = Tied(), torch.arange(20) % 3
    names = [name for name in module.state_dict() if name != unsent] if exchanged else None
    federation = Federation(ledger, Task(Tied(), inputs, labels, exchanged=names), ValuationSettings(oracle=kind))
    losses, largest = [], 0.0
    for t in range(2):
        module.load_state_dict(ledger.open_round(t).global_model, strict=False)
        outputs = module(inputs).double()
        losses.append(nn.functional.cross_entropy(outputs, labels).item())
        largest = max(largest, outputs.abs().max().item())  # about 60: float32 rounds such outputs by 4e-6
    found = federation.game(0).utilities(np.ones((1, 3), dtype=bool)).sum()
    assert found == pytest.approx(losses[0] - losses[1], abs=1e-7 * largest)


@pytest.mark.parametrize("kind", ["loop", "fast"])
def test_tied_tensors_that_a_client_sends_unequal_are_refused(tmp_path, kind):
    """Torch would load the second, and a module called with both uses the first."""
    task = Task(Tied(), torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3)
    ledger, honest = (tied_ledger(tmp_path / str(untied), untied=untied) for untied in ("b", None))
    settings = ValuationSettings(oracle=kind)
    with pytest.raises(UtilityError, match=r"client 'b' sent different numbers for 'first.weight' and 'second.weight'"):
        Federation(ledger, task, settings).value("fedsv")
    assert np.isfinite(Federation(honest, task, settings).value("fedsv").values).all()
    left = Federation(ledger, task, replace(settings, without=("b",), as_average=True)).value("fedsv").values
    assert np.isnan(left).tolist() == [False, True, False]


def test_a_global_model_is_judged_as_torch_loads_it(tmp_path):
    """The server has averaged the unequal tensors; whoever trains next loads the second."""
    ledger, inputs = tied_ledger(tmp_path / "l", untied="b"), torch.randn(20, 4)
    round_, module = ledger.open_round(1), Tied()
    module.load_state_dict(round_.global_model)
    task = Task(Tied(), inputs, torch.arange(20) % 3)
    assert torch.equal(task.outputs(fitted(round_, task).global_model), module(inputs))
