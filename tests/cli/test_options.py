"""Whatever stands on the command line, and wherever output goes: a sentence and a documented code."""

import argparse
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fedworth.cli.main import code_of, main, parser
from fedworth.cli.options import real, whole
from fedworth.errors import ArtefactError, MachineError
from fedworth.oracle.oracle import LoopOracle
from fedworth.storage import write_npz


def parsers(top: argparse.ArgumentParser):
    """A parser and all below it."""
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def test_no_option_takes_numbers_unchecked():
    types = {action.type for each in parsers(parser()) for action in each._actions}
    assert not types & {int, float}
    assert {whole, real} <= types


def failed(arguments: list[str], capsys) -> tuple[int, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, capsys.readouterr().err


SIMULATE = ["simulate", "--out", "new"]
OBSERVATION = ["theory", "observation-1", "--clients", "5", "--participants", "2", "--rounds"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["watch", "l", "--rank", "²"],
        [*SIMULATE, "--dtype", "x"],
        [*SIMULATE, "--rate", "1e400"],
        [*SIMULATE, "--rate", "nan"],
        [*SIMULATE, "--rate=--"],
        [*SIMULATE, "--seed", "-1"],
        [*SIMULATE, "--seed", "9" * 30],
        [*SIMULATE, "--rounds", "9" * 18],
        [*SIMULATE, "--clients", "9" * 18],
        [*SIMULATE, "--clients", "9" * 18, "--noise", "step:1"],
        [*SIMULATE, "--local-steps", "9" * 18],
        [*SIMULATE, "--copy", "²=0"],
        [*SIMULATE, "--noise", "step:1,2"],
        [*SIMULATE, "--noise", "inf"],
        [*SIMULATE, "--model", "mlp", "--hidden", "inf"],
        [*SIMULATE, "--model", "mlp", "--hidden", "9" * 12],
        ["observe", "l", "--out", "new", "--permutations", "9" * 12],
        ["watch", "l", "--every", "-1"],
        ["watch", "l", "--every", "1e300"],
        [*OBSERVATION, "0"],
        [*OBSERVATION, "9" * 12],
    ],
)
def test_an_odd_number_is_refused_at_once(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    code, said = failed(arguments, capsys)
    assert code == 2
    assert "expected" in said or "known are" in said
    assert not list(tmp_path.iterdir())


def test_a_bound_of_a_billion_clients_is_a_number():
    limits = ["--lipschitz", "1", "--smoothness", "2", "--epsilon", "1e-9", "--convexity", "1"]
    assert main(["theory", "rank-bound", *limits, "--rounds", "9", "--clients", str(10**9)]) == 0


@pytest.mark.parametrize("place", ["nowhere/u.npz", "here/u.npz", ".", "here"])
def test_a_place_that_takes_no_output_is_found_before_measuring(tiny_ledger, tmp_path, monkeypatch, capsys, place):
    monkeypatch.setattr(LoopOracle, "utilities", lambda *_: pytest.fail("measured in vain"))
    (tmp_path / "here").write_text("a file, no folder")
    out = str(tmp_path / place)
    assert main(["observe", str(tiny_ledger.folder), "--oracle", "loop", "--out", out]) == ArtefactError.exit_code
    assert out in capsys.readouterr().err


def test_a_completion_with_no_place_to_go_is_refused_before_it_is_made(tmp_path, capsys):
    assert main(["complete", str(tmp_path / "u.npz"), "--out", str(tmp_path / "no" / "c.npz")]) == 12
    assert "no folder" in capsys.readouterr().err


VERSION = ["theory", "observation-1", "--clients", "5", "--participants", "2", "--rounds", "3"]
SCRIPT = "import sys; from fedworth.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("redirected", "code"), [(">&-", 0), (">/dev/full", MachineError.exit_code), ("| exec true", 0), ("2>&-", 0)]
)
def test_an_output_that_takes_nothing_ends_a_command_quietly(redirected, code):
    command = f'set -o pipefail; "$0" -c "$1" "${{@:2}}" {redirected}'
    shell = ["bash", "-c", command, sys.executable, SCRIPT, *VERSION]
    ended = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert ended.returncode == code


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_terminal_without_greek_letters_gets_numbers_instead(tmp_path, options):
    utilities = np.array([[0.0, 0.5, 0.25, 1.0]])
    arrays = {"utilities": utilities, "coalitions": np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=bool)}
    arrays |= {"participants": np.ones((1, 2), dtype=bool), "clients": np.array(["β", "é"])}
    write_npz(tmp_path / "u.npz", arrays)
    command = [sys.executable, "-c", SCRIPT, "value", str(tmp_path / "u.npz"), "--method", "fedsv", *options]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "\\u03b2" in ended.stdout
    if options:
        assert json.loads(ended.stdout)["clients"] == ["β", "é"]


def test_what_an_artefact_says_cannot_paint_a_terminal(tmp_path, capsys):
    arrays = {"\x1b[31mred": np.zeros(3), "other": np.zeros(3)}
    write_npz(tmp_path / "u.npz", arrays)
    assert main(["value", str(tmp_path / "u.npz")]) == 6
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError("8 TiB"), OSError(28, "No space left on device", "/here")])
def test_what_the_machine_refuses_is_one_line(capsys, error):
    def fail() -> None:
        raise error

    assert code_of(fail) == MachineError.exit_code
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
