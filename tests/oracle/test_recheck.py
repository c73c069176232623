"""No number goes unchecked: cells measured again by the plain loop, and who makes a coalition's loss infinite."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.errors import UtilityError
from fedworth.games.observe import observe
from fedworth.games.planning.plan import plan_exact
from fedworth.ledger.ledger import Ledger, Round, open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.names import Measure
from fedworth.oracle.batches import Batch
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.recheck import PlainRound, measured
from fedworth.oracle.weighting import Mixtures, participation
from fedworth.task.task import Task
from tests.support.zoo import ZOO, exact_utilities, round_of, task_of

ALL = coalitions_of(np.arange(5), 5)[1:]


@dataclass(frozen=True)
class WrongOracle:
    """The plain loop, but for one cell of every batch."""

    task: Task
    row: int
    error: float
    measure: Measure = "loss"
    n_blocks: int = 1

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:
        found = LoopOracle(self.task, self.measure).utilities(round_, mixtures)
        found[self.row] += self.error
        return found


def batch_of(counts=(1.0, 1.0, 1.0, 1.0, 1.0), weighting="samples") -> Batch:
    return Batch(3, np.arange(31), ALL, np.array(counts), weighting, ("ada", "ben", "cyd", "dan", "eva"))


def test_a_wrong_utility_at_the_end_of_a_batch_is_an_error_that_says_where(tiny_ledger, tiny_task):
    with pytest.raises(UtilityError) as caught:
        observe(tiny_ledger, WrongOracle(tiny_task, -1, 1e-3), plan_exact(participation(tiny_ledger)))
    assert str(caught.value).startswith("round 0, coalition {0, 1, 2, 3, 4}: the fast oracle measures a utility of ")
    assert "the plain loop" in str(caught.value)
    assert "use --oracle loop, and report it" in str(caught.value)


@pytest.mark.parametrize("error", [1e-5, 0.1, -0.1, np.nextafter(1e-5, 1)])
def test_so_is_one_whose_members_count_least(error):
    task = task_of(*ZOO["mlp"][:2])
    batch = batch_of((50, 40, 1e-18, 30, 20))
    assert measured(WrongOracle(task, 3, 0.0), round_of(task.module), batch).witness is not None
    with pytest.raises(UtilityError, match=r"round 3, coalition \{cyd\}: the fast oracle measures"):
        measured(WrongOracle(task, 3, error), round_of(task.module), batch)


@pytest.mark.parametrize("measure", ["loss", "accuracy"])
@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "vgg", "recurrent", "branching", "batch statistics"])
def test_what_rounding_does_is_no_disagreement(name, measure):
    task = task_of(*ZOO[name][:2])
    for weighting in ("samples", "fixed"):
        counts = np.array([50.0, 40, 1, 30, 20]) / (141 if weighting == "fixed" else 1)
        measured(FastOracle(task, measure, n_threads=1), round_of(task.module), batch_of(counts, weighting))


class Cancelling(nn.Module):
    """Large numbers on the way cancel before the logits, which show nothing of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = (self.layer(rows) + 3e4) - 3e4
        return logits


def test_nor_is_it_where_large_numbers_cancel():
    """Against the exact utility, the plain loop in float32 errs by much more than 4 e, and that is known of it."""
    task, mixtures = task_of(Cancelling, (8,)), batch_of().mixtures()
    round_ = round_of(task.module)
    exact = exact_utilities(task, round_, mixtures)
    plain = PlainRound(task, "loss", round_)
    row = int(np.abs(LoopOracle(task).utilities(round_, mixtures).sum(axis=1) - exact).argmax())
    assert abs(plain.utility(mixtures, row) - exact[row]) > 1e-4
    assert plain.disagreement(mixtures, row, float(exact[row])) == ""
    assert plain.disagreement(mixtures, row, float(exact[row]) + 0.1)


def test_a_module_of_chance_is_refused():
    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.layer(rows), 0.5, training=True)

    task = task_of(Random, (8,))
    torch.manual_seed(0)
    with pytest.raises(UtilityError, match="A module whose answers change from call to call"):
        measured(WrongOracle(task, 0, 0.0), round_of(task.module), batch_of())
    with pytest.raises(UtilityError, match=r"the plain loop measures .*, then .* cannot be measured"):
        measured(LoopOracle(task), round_of(task.module), batch_of())


def ledger_with(folder, size: float = 1e3, **factors: float) -> tuple[Ledger, Task]:
    """A round of clients whose models are so many times as large as the others', and test inputs of this size."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    models = {name: {key: factor * (t + 0.1) for key, t in start.items()} for name, factor in factors.items()}
    writer = create_ledger(folder, list(models), aggregation="uniform")
    writer.record_round(start, {name: Answer(model, 1) for name, model in models.items()})
    return open_ledger(folder), Task(module, torch.full((6, 3), size), torch.arange(6) % 2)


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
def test_an_overflowing_coalition_is_refused_with_the_client_whose_absence_cures_it(tmp_path, oracle_type):
    ledger, task = ledger_with(tmp_path / "ledger", 1e27, ada=1.0, ben=1.1, cyd=1e7)  # no more, or it is quarantined
    with pytest.raises(UtilityError) as caught:
        observe(ledger, oracle_type(task), plan_exact(participation(ledger)))
    assert str(caught.value) == (
        "round 0, coalition {cyd}: the loss of the coalition's model on the test set is not finite; "
        "without 'cyd' it is finite, so leave that client out (--without cyd)"
    )


def ledger_with_eve(folder) -> tuple[Ledger, Task]:
    """Equal numbers of 1e6 in every layer: outputs of 1e17 that cancel, and a loss that differs by route."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    names = ("ada", "eve", "ben", "cyd")
    models = {name: {key: t + 0.1 * torch.randn(t.shape) for key, t in start.items()} for name in names}
    models["eve"] = {key: torch.full_like(t, 1e6) for key, t in start.items()}
    writer = create_ledger(folder, list(models), aggregation="uniform")
    writer.record_round(start, {name: Answer(model, 1) for name, model in models.items()})
    return open_ledger(folder), Task(module, torch.randn(64, 8), torch.arange(64) % 3)


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
def test_a_utility_that_rounding_alone_decides_is_refused_with_the_client(tmp_path, oracle_type):
    ledger, task = ledger_with_eve(tmp_path / "ledger")
    with pytest.raises(UtilityError, match=r"rounding alone decides its utility; without 'eve' it is sure, so leave"):
        observe(ledger, oracle_type(task), plan_exact(participation(ledger)))


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
def test_so_is_one_that_stands_at_neither_end_of_its_batch(tmp_path, oracle_type):
    ledger, task = ledger_with_eve(tmp_path / "ledger")
    batch = Batch(0, np.arange(4), np.eye(4, dtype=bool), np.ones(4), "uniform", ledger.clients)
    with pytest.raises(UtilityError, match=r"coalition \{eve\}: .* rounding alone decides its utility"):
        measured(oracle_type(task), ledger.open_round(0), batch)
    good = replace(batch, coalitions=batch.coalitions[[0, 2, 3]], cells=np.arange(3))
    assert np.isfinite(measured(oracle_type(task), ledger.open_round(0), good).utilities).all()


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
def test_two_who_overflow_together_only_are_told_apart_by_trying(tmp_path, oracle_type):
    """Either alone is finite; in the coalition of both, the absence of either cures it."""
    ledger, task = ledger_with(tmp_path / "ledger", ada=1.0, ben=1.0)
    round_ = ledger.open_round(0)
    first, second = dict(round_.client_models[0]), dict(round_.client_models[1])
    first["0.weight"], second["2.weight"] = first["0.weight"] * 1e25, second["2.weight"] * 1e25
    first["2.weight"], second["0.weight"] = torch.zeros(2, 4), torch.zeros(4, 3)
    both = Round(round_.entry, round_.global_model, {0: first, 1: second}, {})
    batch = Batch(0, np.arange(3), coalitions_of(np.arange(2), 2)[1:], np.ones(2), "uniform", ("ada", "ben"))
    with pytest.raises(UtilityError, match=r"coalition \{ada, ben\}: .* not finite; without '(ada|ben)' it is finite"):
        measured(oracle_type(task), both, batch)


def test_a_global_model_that_overflows_is_said_to(tmp_path):
    ledger, task = ledger_with(tmp_path / "ledger", 1e27, ada=1.0, ben=1.0)
    round_ = ledger.open_round(0)
    start = {name: torch.full_like(tensor, 1e7) for name, tensor in round_.global_model.items()}
    batch = Batch(0, np.arange(3), coalitions_of(np.arange(2), 2)[1:], np.ones(2), "uniform", ledger.clients)
    with pytest.raises(UtilityError, match="round 0: the global model's loss on the test set is not finite"):
        measured(LoopOracle(task), Round(round_.entry, start, round_.client_models, {}), batch)


def test_a_batch_whose_fast_numbers_are_not_finite_is_measured_by_the_plain_loop(tmp_path):
    """A client's own outputs overflow, but nobody asks for it alone, and in an average they do not."""
    ledger, task = ledger_with(tmp_path / "ledger", ada=1.0, ben=1.0, cyd=1.0)
    round_ = ledger.open_round(0)
    huge = {**round_.client_models[2], "0.weight": torch.full((4, 3), -1.8e35)}
    whole = Round(round_.entry, round_.global_model, {**round_.client_models, 2: huge}, {})
    batch = Batch(0, np.arange(1), np.ones((1, 3), dtype=bool), np.ones(3), "uniform", ("ada", "ben", "cyd"))
    found = measured(FastOracle(task), whole, batch).utilities
    expected = LoopOracle(task).utilities(whole, batch.mixtures()).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "expected"), [("mlp", 1), ("cnn", 2)])
def test_small_models_are_measured_and_mixed_on_one_thread_and_torch_keeps_its_own(name, expected):
    """Two threads wait for each other beside a busy process, and a federation of 100 clients took minutes by that."""
    seen = []

    class Looking(LoopOracle):
        def utilities(self, round_, mixtures):
            seen.append(torch.get_num_threads())
            return super().utilities(round_, mixtures)

    before, task = torch.get_num_threads(), task_of(*ZOO[name][:2])
    torch.set_num_threads(2)
    try:
        measured(Looking(task), round_of(task.module), batch_of())
        assert (seen, torch.get_num_threads()) == ([expected], 2)
    finally:
        torch.set_num_threads(before)
