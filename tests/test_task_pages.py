"""The code on the pages about tasks and privacy runs, and makes tasks that both oracles can measure."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import fedworth
from fedworth.task.losses import LOSSES
from tests.support.tasks import Two
from tests.support.zoo import all_mixtures, round_of
from tests.task.test_adapters import Adapted

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
PAGE = (DOCS / "tasks.md").read_text()


class Keras:
    """What the page asks of a Keras model."""

    def __init__(self):
        self.weights = [np.zeros((6, 1)), np.zeros(1)]

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights

    def evaluate(self, x, y):
        return float(np.mean((x @ self.weights[0] + self.weights[1] - y[:, None]) ** 2))


def names() -> dict[str, Any]:
    """What stands for the reader's own."""
    generator = torch.Generator().manual_seed(0)
    x_test, y_test = torch.randn(12, 6, generator=generator), torch.arange(12) % 3
    two = [(x_test[i : i + 4, :3], x_test[i : i + 4, 3:5], y_test[i : i + 4]) for i in (0, 4, 8)]
    return {
        "net": nn.Linear(6, 3),
        "net_of_numbers": nn.Linear(6, 2),
        "net_of_one_number": nn.Linear(6, 1),
        "net_of_two": Two(),
        "net_with_adapters": Adapted(),
        "x_test": x_test,
        "y_test": y_test,
        "site_of_sample": ["north", "south", "west"] * 4,
        "age_of_sample": y_test // 2,
        "y_numbers": torch.randn(12, 2, generator=generator),
        "y_number": torch.randn(12, generator=generator),
        "loader": two,
        "classifier": LogisticRegression().fit(x_test.numpy(), y_test.numpy() > 0),
        "x_rows": x_test.numpy(),
        "y_rows": y_test.numpy() > 0,
        "keras_model": Keras(),
    }


BLOCKS = [*BLOCK.findall(PAGE), BLOCK.findall((DOCS / "privacy.md").read_text())[1]]


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_every_example_makes_a_task_that_can_be_measured(code):
    known = names()
    exec(code, known)
    task = known["task"]
    whole = round_of(task.module)
    kept = {k: {n: m[n] for n in task.state} for k, m in {**whole.client_models, -1: whole.global_model}.items()}
    round_ = type(whole)(whole.entry, kept.pop(-1), kept, {})
    wanted = all_mixtures("samples")
    found = fedworth.LoopOracle(task).utilities(round_, wanted).sum(axis=1)
    assert found.any()
    assert fedworth.FastOracle(task).utilities(round_, wanted).sum(axis=1) == pytest.approx(found, abs=1e-5)


def test_the_page_lists_every_loss_with_its_measures():
    rows = {}
    for row in re.findall(r"^\| (`[^|]*) \|[^|]*\|[^|]*\| ([^|]*) \|$", PAGE, flags=re.MULTILINE):
        for name in re.findall(r"`([\w-]+)`", row[0]):
            rows[name] = set(re.findall(r"`([\w-]+)`", row[1]))
    assert rows == {name: {measure.name for measure in loss.measures} for name, loss in LOSSES.items()}


def test_groups_are_made_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = {"w": torch.zeros(2)}
    writer = fedworth.LedgerWriter.create("l", tuple("abcd"), aggregation="uniform")
    writer.record_round(model, {name: fedworth.Answer({"w": torch.ones(2)}, 1) for name in "abcd"})
    writer.release()
    known: dict[str, Any] = {"ledger": fedworth.Ledger.open("l")}
    exec(BLOCK.findall((DOCS / "privacy.md").read_text())[0], known)
    assert known["groups"].clients == ("north", "south")
