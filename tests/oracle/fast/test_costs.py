"""What routes should take, and that a round's global model is paid for once."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.errors import UtilityError
from fedworth.oracle.fast import costs
from fedworth.oracle.fast import oracle as fast_oracle
from fedworth.oracle.fast.affine import qualities
from fedworth.oracle.fast.costs import Kind, Price, cheapest_first, estimate, loop_batch, prices
from fedworth.oracle.fast.graph import export
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.fast.routes import KernelRoute, LoopRoute, SectionsRoute
from fedworth.oracle.fast.sections import cut, flops, prefix_of
from fedworth.oracle.fast.wanted import wanted_parts
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import mixtures
from tests.support.tasks import Words, task_with
from tests.support.zoo import ZOO, round_of, task_of

WANTED = mixtures(coalitions_of(np.arange(5), 5)[1:], np.ones(5), "uniform")


def measured(name):
    """A task of the zoo, a round of it, and an oracle that has measured all coalitions."""
    task = task_of(*ZOO[name][:2])
    round_ = round_of(task.module)
    oracle = FastOracle(task, n_threads=1)
    return task, round_, oracle, oracle.utilities(round_, WANTED).sum(axis=1)


def only_route(oracle):
    (route,) = oracle._routes.taken()
    assert isinstance(route, KernelRoute | SectionsRoute)
    return route


def expected(oracle, part, n_samples):
    route = only_route(oracle)
    return estimate(route.kind, route.sections, part, n_samples=n_samples, batch_size=route.batch_size)


def test_twice_the_samples_should_take_twice_the_time_and_no_more_memory():
    task, round_, oracle, _ = measured("mlp")
    (part,) = wanted_parts(round_, WANTED, task.device)
    once, twice = (expected(oracle, part, n) for n in (1000, 2000))
    assert twice.seconds == pytest.approx(2 * once.seconds)
    assert twice.megabytes == once.megabytes > 0


def test_fewer_coalitions_should_take_less():
    task, round_, oracle, _ = measured("mlp")
    (part,) = wanted_parts(round_, WANTED, task.device)
    some = part.only(np.arange(len(part.places)) < 5)
    assert expected(oracle, some, 100).seconds < expected(oracle, part, 100).seconds


def test_a_route_says_what_it_should_have_taken_and_what_it_took():
    _, round_, oracle, _ = measured("mlp")
    assert f"; {len(WANTED)} coalitions: " in oracle.describe()
    oracle.utilities(round_, WANTED).sum(axis=1)
    said = re.search(r"; (\d+) coalitions: \S+ s and \d+ MB expected, \S+ s and \d+ MB taken", oracle.describe())
    assert said is not None
    assert int(said[1]) == 2 * len(WANTED)


def test_memory_taken_is_what_the_peak_grows_by(monkeypatch):
    peaks = iter([100.0, 130.0, 130.0, 130.0])
    monkeypatch.setattr(costs, "_peak_megabytes", lambda: next(peaks))
    spent, route = costs.Spent(), object()
    for n in (3, 4):
        with spent.noted(route, n, costs.Cost(2.0, 50.0)):
            pass
    assert spent.said(route).startswith("; 7 coalitions: 4 s and 50 MB expected, ")
    assert spent.said(route).endswith(" s and 30 MB taken")


@pytest.mark.parametrize(
    ("constant", "cost", "kind"),
    [
        ("RUNNING_COST", 20.0, "kernel"),
        ("RUNNING_COST", 1e6, "graph"),
        ("WRITING_COST", -1e3, "prefix"),
        ("LOOP_COST", 0.0, "loop"),
    ],
)
def test_another_cost_makes_another_choice_and_the_same_utilities(monkeypatch, constant, cost, kind):
    monkeypatch.setattr(costs, constant, cost)
    task, round_, oracle, found = measured("mlp")
    assert oracle.describe().startswith(f"{kind}: ")
    assert found == pytest.approx(LoopOracle(task).utilities(round_, WANTED).sum(axis=1), abs=1e-6)


def test_the_cheapest_route_is_taken_of_those_that_fit():
    found: dict[Kind, Price]
    found = {"kernel": Price(1.0, 900), "prefix": Price(2.0, 500), "graph": Price(3.0, 100), "plain": Price(4.0, 0)}
    assert cheapest_first(found, 1000) == ("kernel", "graph", "plain")
    assert cheapest_first(found, 600) == ("prefix", "graph", "plain")
    assert cheapest_first(found, 50) == ("plain",)
    dear: dict[Kind, Price] = {**found, "prefix": Price(3.5, 500)}
    assert cheapest_first(dear, 600) == ("graph", "plain")


def test_coalitions_of_all_sizes_go_together_where_nothing_is_shared():
    """A shared prefix would cost small ones less than the module's own way, large ones more; it is not taken."""
    exported = export(nn.Sequential(nn.Linear(50, 9), nn.Tanh(), nn.Linear(9, 4)), torch.rand(5, 50))
    sections = cut(exported, {"0.weight", "0.bias", "2.weight", "2.bias"})
    ways = set()
    for n_members in range(1, 10):
        found = prices(sections, n_members, model_bytes=0, n_together=32)
        del found["kernel"]
        ways.add(cheapest_first(found, math.inf))
    assert ways == {("graph", "loop", "plain")}


@pytest.mark.parametrize(("layer", "n_gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_costs_its_weights_at_every_step(layer, n_gates):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = layer(8, 16, batch_first=True), nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.body(x)[0][:, -1])

    graph = export(Reader(), torch.randn(4, 20, 8)).graph_module.graph
    n_weights = n_gates * 16 * (8 + 16 + 2)
    cost = sum(flops(node) for node in graph.nodes)
    assert 2 * 20 * n_weights < cost < 4 * 20 * n_weights


@pytest.mark.parametrize(("cell", "n_gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_a_recurrent_cell_costs_its_weights(cell, n_gates):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = cell(8, 16), nn.Linear(16, 3)

        def forward(self, x):
            state = self.body(x)
            return self.head(state[0] if isinstance(state, tuple) else state)

    graph = export(Reader(), torch.randn(4, 8)).graph_module.graph
    n_weights = n_gates * 16 * (8 + 16 + 2)
    assert 2 * n_weights < sum(flops(node) for node in graph.nodes) < 4 * n_weights


@pytest.mark.parametrize(("n_tokens", "room", "size"), [(5, 1 << 24, 1 << 16), (5, 1000, 4), (500, 1000, 1)])
def test_as_many_samples_go_through_a_module_as_its_tokens_leave_room_for(monkeypatch, n_tokens, room, size):
    monkeypatch.setattr(costs, "LOOP_BYTES", room if room < 1 << 24 else 4 * 7 * n_tokens << 16)
    module = Words()
    assert loop_batch(module, torch.zeros(3, n_tokens, dtype=torch.int64)) == size
    assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize("room", [1 << 24, 300])
def test_losses_over_tokens_are_the_plain_loops_in_batches_of_any_size(monkeypatch, room):
    monkeypatch.setattr(costs, "LOOP_BYTES", room)
    task = task_with("next-token")
    round_, oracle = round_of(task.module), FastOracle(task, n_threads=1)
    assert oracle.utilities(round_, WANTED).sum(axis=1) == pytest.approx(
        LoopOracle(task).utilities(round_, WANTED).sum(axis=1), abs=1e-6
    )
    (route,) = oracle._routes.taken()
    assert isinstance(route, LoopRoute)
    assert route.batch_size == (512 if room > 300 else 2)


@pytest.fixture
def rows_evaluated(monkeypatch):
    """How many models each call of the sections evaluates."""
    counts: list[int] = []
    real = qualities

    def counted(sections, models, rows, samples, **how):
        counts.append(len(rows))
        return real(sections, models, rows, samples, **how)

    monkeypatch.setattr(fast_oracle, "qualities", counted)
    return counts


def test_the_global_model_of_a_round_is_measured_once(rows_evaluated):
    _, round_, oracle, found = measured("cnn")
    again = oracle.utilities(round_, WANTED).sum(axis=1)
    assert rows_evaluated[-1] == rows_evaluated[0] - 1 == len(WANTED)
    assert again.tobytes() == found.tobytes()


def test_another_global_model_is_measured_anew(rows_evaluated):
    task, round_, oracle, _ = measured("cnn")
    moved = {name: tensor + 0.01 for name, tensor in round_.global_model.items()}
    other = replace(round_, global_model=moved)
    found = oracle.utilities(other, WANTED).sum(axis=1)
    assert rows_evaluated == [len(WANTED) + 1] * 2
    assert found.tobytes() == FastOracle(task, n_threads=1).utilities(other, WANTED).sum(axis=1).tobytes()


def test_sections_without_a_prefix_have_none_to_give():
    *_, oracle, _ = measured("logistic")
    with pytest.raises(UtilityError, match="without an affine prefix"):
        prefix_of(replace(only_route(oracle).sections, prefix=None))
