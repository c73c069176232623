"""One small run that the tests of commands read, and a way to call a command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedworth.cli.main import main

SMALL = [*("--clients", "4", "--copy", "3=0", "--participants", "2", "--rounds", "3"), *("--train-limit", "120")]
TINY_TEST = ["--test-limit", "60"]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clients, the last a copy of the first; three rounds of two, all in the first."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["run", *SMALL, *TINY_TEST, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The JSON that a command prints."""

    def call(*words: object) -> Any:
        capsys.readouterr()
        assert main([*map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command says on standard error when it ends with this code; it prints nothing else."""

    def call(code: int, *words: object) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert "error: " in err
        return err

    return call
