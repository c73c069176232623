"""The how-to page on Flower and the README's line do what they say: their own code is run, with ten clients."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg
from handwriting import client_app
from handwriting.task import build

import fedworth.flower
from tests.recording.flower.in_process import InProcessGrid

ROOT = Path(__file__).parents[3]
BLOCKS = dict(
    re.findall(
        r"^```python title=\"(\w+)\.py\"\n(.*?)^```$",
        (ROOT / "docs" / "howto" / "flower.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
)


@pytest.fixture
def grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random.seed(0)  # what Flower draws its nodes from
    return InProcessGrid(client_app.app, 10, {"n-clients": 10, "learning-rate": 0.2})


def test_the_server_of_the_page_records_every_round(grid, monkeypatch):
    monkeypatch.setattr(FedAvg, "start", _shortly)
    known: dict[str, Any] = {"net": build}
    exec(compile(BLOCKS["server_app"], "server_app.py", "exec"), known)
    known["main"](grid, None)
    ledger = fedworth.Ledger.verify("my.ledger")
    assert (len(ledger.clients), ledger.n_rounds, ledger.is_closed) == (10, 3, True)
    assert len(ledger.participants(0)) == 10


def test_the_client_of_the_page_says_its_name():
    known: dict[str, Any] = {}
    exec(compile(BLOCKS["client_app"], "client_app.py", "exec"), known)
    assert known["app"]._mods == [fedworth.flower.identity]


def test_the_line_of_the_readme_gives_a_grid_that_records(grid):
    (line,) = re.findall(r"^(grid = fedworth\.flower.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    known = {"fedworth": fedworth, "grid": grid}
    exec(compile(line, "README.md", "exec"), known)
    _shortly(FedAvg(fraction_train=0.3, fraction_evaluate=0.0), grid=known["grid"], initial_arrays=_arrays())
    assert fedworth.Ledger.open("my.ledger").n_rounds == 3


START = FedAvg.start


def _shortly(strategy: Any, **options: Any) -> Any:
    """Three rounds instead of the page's twenty, and nothing evaluated."""
    strategy.fraction_evaluate = 0.0
    return START(strategy, **{**options, "num_rounds": 3})


def _arrays() -> Any:
    from flwr.app import ArrayRecord

    return ArrayRecord(build().state_dict())
