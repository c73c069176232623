"""What routes should take, and that a round's global model is paid for once."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.errors import UtilityError
from fedworth.utility.coalitions import coalitions_of
from fedworth.utility.fast import oracle as fast_oracle
from fedworth.utility.fast.affine import qualities
from fedworth.utility.fast.costs import estimate
from fedworth.utility.fast.oracle import FastOracle
from fedworth.utility.fast.routes import KernelRoute, SectionsRoute
from fedworth.utility.fast.sections import prefix_of
from fedworth.utility.fast.wanted import wanted_parts
from fedworth.utility.weighting import mixtures
from tests.support.zoo import ZOO, round_of, task_of

WANTED = mixtures(coalitions_of(np.arange(5), 5)[1:], np.ones(5), "uniform")


def measured(name):
    """A task of the zoo, a round of it, and an oracle that has measured all coalitions."""
    task = task_of(*ZOO[name][:2])
    round_ = round_of(task.module)
    oracle = FastOracle(task, n_threads=1)
    return task, round_, oracle, oracle.utilities(round_, WANTED)


def only_route(oracle):
    (route,) = oracle._routes.taken()
    assert isinstance(route, KernelRoute | SectionsRoute)
    return route


def test_twice_the_samples_should_take_twice_the_time_and_no_more_memory():
    task, round_, oracle, _ = measured("mlp")
    (part,) = wanted_parts(round_, WANTED, task.device)
    once, twice = (estimate(only_route(oracle), part, n) for n in (1000, 2000))
    assert twice.seconds == pytest.approx(2 * once.seconds)
    assert twice.megabytes == once.megabytes > 0


def test_fewer_coalitions_should_take_less():
    task, round_, oracle, _ = measured("mlp")
    (part,) = wanted_parts(round_, WANTED, task.device)
    some = part.only(np.arange(len(part.places)) < 5)
    assert estimate(only_route(oracle), some, 100).seconds < estimate(only_route(oracle), part, 100).seconds


def test_a_route_says_what_it_should_have_taken_and_what_it_took():
    _, round_, oracle, _ = measured("mlp")
    assert f"; {len(WANTED)} coalitions: " in oracle.describe()
    oracle.utilities(round_, WANTED)
    line = oracle.describe()
    assert f"; {2 * len(WANTED)} coalitions: " in line
    assert line.index(" MB expected, ") < line.index(" s taken")


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
    again = oracle.utilities(round_, WANTED)
    assert rows_evaluated[-1] == rows_evaluated[0] - 1 == len(WANTED)
    assert again.tobytes() == found.tobytes()


def test_another_global_model_is_measured_anew(rows_evaluated):
    task, round_, oracle, _ = measured("cnn")
    moved = {name: tensor + 0.01 for name, tensor in round_.global_model.items()}
    other = replace(round_, global_model=moved)
    found = oracle.utilities(other, WANTED)
    assert rows_evaluated == [len(WANTED) + 1] * 2
    assert found.tobytes() == FastOracle(task, n_threads=1).utilities(other, WANTED).tobytes()


def test_sections_without_a_prefix_have_none_to_give():
    *_, oracle, _ = measured("logistic")
    with pytest.raises(UtilityError, match="without an affine prefix"):
        prefix_of(replace(only_route(oracle).sections, prefix=None))
