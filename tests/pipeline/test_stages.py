"""Whoever values a ledger gets the same numbers: run, watch, observe and value, and Python."""

import json

import numpy as np
import pytest

from fedworth.cli.main import main
from fedworth.games.matrix_file import load_utilities
from fedworth.games.observe import observe
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.pipeline.stages import ValuingSettings, value_by
from fedworth.task.task import Task

SMALL = [*("--clients", "5", "--copy", "4=0", "--participants", "2", "--rounds", "3"), *("--train-limit", "150")]
OPTIONS = {
    "exact": [],
    "monte carlo": ["--permutations", "6"],
    "as many as usual": ["--permutations", "auto"],
    "permutations": ["--permutations", "6", "--sampler", "permutations"],
    "another seed": ["--permutations", "6", "--seed", "3"],
    "fixed weights": ["--weighting", "fixed"],
    "accuracy": ["--measure", "accuracy"],
}
METHODS = ("comfedsv", "comfedsv-factors", "fedsv")


def values_in(report):
    return {v["method"]: (v["values"], v["standard_errors"]) for v in report["valuations"] if v["method"] in METHODS}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_run_watch_and_the_commands_one_by_one_agree_to_the_bit(options, tmp_path, capsys):
    def told(*command):
        assert main([str(word) for word in command]) == 0
        return json.loads(capsys.readouterr().out)

    ledger, utilities = tmp_path / "run" / "ledger", tmp_path / "u.npz"
    expected = values_in(told("run", *SMALL, *options, "--out", tmp_path / "run", "--json"))
    assert set(expected) == set(METHODS)
    assert values_in(told("watch", ledger, *options, "--once", "--out", tmp_path / "w", "--json")) == expected
    as_measured = options if {"--weighting", "--measure", "--completion"} & set(options) else []
    told("observe", ledger, *options, "--out", utilities, "--no-cache", "--json")
    told("complete", utilities, "--ledger", ledger, *as_measured, "--out", tmp_path / "c.npz", "--json")
    for method in METHODS:
        by = ["--completion", tmp_path / "c.npz"] if method == "comfedsv" else []
        found = told("value", utilities, "--method", method, *by, "--json")
        assert (found["values"], found["standard_errors"]) == expected[method]


def test_watch_values_more_clients_than_can_be_enumerated(tmp_path, capsys):
    many = [*("--clients", "24", "--copy", "none", "--participants", "2", "--rounds", "2"), *("--train-limit", "300")]
    assert main(["simulate", *many, "--no-truth", "--partition", "iid", "--out", str(tmp_path / "l")]) == 0
    capsys.readouterr()
    assert main(["watch", str(tmp_path / "l"), "--once", "--permutations", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["refusals"] == []
    assert all(len(v["values"]) == 24 for v in report["valuations"])
    assert main(["watch", str(tmp_path / "l"), "--once", "--out", str(tmp_path / "games"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refusals"] == []


TASK = """
import torch
import fedworth

def task():
    generator = torch.Generator().manual_seed(0)
    return fedworth.Task(
        torch.nn.Linear(4, 3), torch.randn(40, 4, generator=generator), torch.randint(3, (40,), generator=generator)
    )
"""


def test_python_averages_a_recorded_federation_as_the_command_does(tmp_path):
    import torch

    generator = torch.Generator().manual_seed(1)

    def model():
        return {"weight": torch.randn(3, 4, generator=generator), "bias": torch.randn(3, generator=generator)}

    writer = create_ledger(tmp_path / "l", aggregation="samples")
    writer.record_round(model(), {name: Answer(model(), 10**k) for k, name in enumerate("abc")})
    (tmp_path / "mytask.py").write_text(TASK)
    out = str(tmp_path / "u.npz")
    assert main(["observe", str(tmp_path / "l"), "--task", f"{tmp_path}/mytask.py:task", "--out", out]) == 0
    space: dict[str, object] = {}
    exec(TASK, space)  # the same task as the file's
    task = space["task"]()  # type: ignore[operator]
    assert isinstance(task, Task)
    by_command, ledger = load_utilities(tmp_path / "u.npz"), open_ledger(tmp_path / "l")
    assert np.array_equal(observe(ledger, FastOracle(task)).utilities, by_command.utilities)
    plain = observe(ledger, LoopOracle(task))
    assert plain.utilities == pytest.approx(by_command.utilities, abs=1e-6)
    uniform = observe(ledger, LoopOracle(task), weighting="uniform")
    assert np.abs(uniform.utilities - plain.utilities).max() > 0.1


def test_a_refused_method_is_named_or_under_strict_an_error(tiny_ledger, tiny_task):
    from fedworth.errors import ValuationError

    matrix = observe(tiny_ledger, LoopOracle(tiny_task))
    made, refusals = value_by(("fedsv", "truth"), matrix, {}, ValuingSettings())
    assert [valuation.method for valuation in made] == ["fedsv"]
    assert [method for method, _ in refusals] == ["truth"]
    with pytest.raises(ValuationError):
        value_by(("truth",), matrix, {}, ValuingSettings(strict=True))
