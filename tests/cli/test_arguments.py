"""Whatever stands on the command line, and wherever output goes: an answer at once, a sentence, a documented code."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedworth.cli.main import COMMANDS, code_of, command_class, main
from fedworth.cli.options import options_of
from fedworth.cli.show import show_table, warn, whole_words
from fedworth.errors import ArtefactError, MachineError
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.oracle import LoopOracle
from fedworth.report.tables import Table
from fedworth.storage import write_npz
from fedworth.valuation.methods import METHODS
from tools.commands import page

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys, time
before = set(sys.modules)
from fedworth.cli.main import main
try:
    code = main(json.loads(sys.argv[1]))
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, sorted(set(sys.modules) - before), time.process_time()]), file=sys.stderr)
"""


def loaded(*arguments: str) -> tuple[int, set[str], float]:
    """A command line in a process of its own: exit code, modules that it loaded, seconds of processor time."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, modules, seconds = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules), seconds


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("--version", 0),
        ("run --help", 0),
        ("theory fairness --help", 0),
        ("runn", 2),
        ("run --rounds many --out x", 2),
        ("run --oracle fsat --out x", 2),
        ("run --copy 3 --out x", 2),
        ("run --clients 4 --copy 9=0 --out x", 2),
        ("run --noise step:2 --out x", 2),
        ("run --schedule proposition-2 --out x", 2),
        ("simulate --batch-size 0 --out x", 2),
        ("simulate --flips 0.1,0.2 --out x", 2),
        ("value ledger --address 1.2.3.4:5", 2),
        ("verify ledger --sign key.pem", 2),
        ("statement run", 2),
        ("theory rank-bound", 2),
    ],
)
def test_help_and_refused_options_load_no_library_and_answer_at_once(arguments, code):
    found, modules, seconds = loaded(*arguments.split())
    assert found == code
    assert {name.split(".")[0] for name in modules} - sys.stdlib_module_names == {"fedworth"}
    assert seconds < 0.4  # a tenth on an idle processor


def test_the_page_of_commands_is_what_the_commands_say():
    written = (ROOT / "docs" / "commands.md").read_text()
    assert written == page(), "write it anew: python -m tools.commands > docs/commands.md"


def test_every_option_is_explained_in_a_sentence_that_starts_with_a_capital():
    for name in COMMANDS:
        for option in options_of(command_class(name)):
            assert option.help[0].isupper() or not option.help[0].isascii(), (name, option.name)
            assert len(option.help.split()) >= 2, (name, option.name)


def test_the_help_of_compare_lists_every_method(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    shown = "".join(capsys.readouterr().out.split())
    assert [name for name in METHODS if name not in shown] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    (example,) = re.findall(rf"^  (fedworth {name} .*)$", shown, re.MULTILINE)
    options = {option.flag for option in options_of(command_class(name))}
    assert set(re.findall(r"--[\w-]+", example)) <= options


@pytest.mark.parametrize(
    ("line", "meant", "usage"),
    [
        ("runn", "'run'", None),
        ("run --ouy x", "'--out'", "fedworth run --out PATH [options]; more: fedworth run --help"),
        ("run -out x", "'--out'", "fedworth run --out PATH [options]; more: fedworth run --help"),
        ("value u.npz --methd=fedsv", "'--method'", "fedworth value SOURCE [options]; more: fedworth value --help"),
        ("theory ranc", "'rank'", None),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(capsys, line, meant, usage):
    assert main(line.split()) == 2
    error, *second = capsys.readouterr().err.splitlines()
    assert error.startswith("error: unknown ")
    assert f"did you mean {meant}?" in error
    assert second == ([] if usage is None else [f"usage: {usage}"])


def test_an_option_like_no_other_is_named_without_a_guess(capsys):
    assert main(["run", "--zzz"]) == 2
    assert "unknown option '--zzz': expected one that this command has" in capsys.readouterr().err


def test_a_shortened_option_and_a_negative_number_are_no_slips(capsys):
    main(["theory", "observation-1", "--partic", "2", "--rounds", "2", "--sigma", "-1"])
    assert "sigma is -1.0, expected" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "known"), [([], "simulate"), (["theory"], "rank-bound")])
def test_a_command_alone_shows_its_help(capsys, line, known):
    assert main(line) == 0
    assert known in capsys.readouterr().out


def test_the_help_of_all_commands_has_the_exit_codes_and_names_documentation_that_is_there(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    joined = " ".join(shown.split())
    assert "2 UsageError, 3 DataError" in joined
    assert "14 MachineError, 130 interrupted" in joined
    (place,) = re.findall("^documentation: (.*)$", shown, re.MULTILINE)
    assert Path(place).read_text().startswith("# ")


@pytest.mark.parametrize(
    ("line", "kind", "code", "said"),
    [
        ("value none.npz --json", "ArtefactError", 12, "none.npz: no such file"),
        ("value --json", "UsageError", 2, "required: SOURCE"),
        ("complete u.npz --out c.npz --by modles --json", "UsageError", 2, "did you mean 'models'?"),
    ],
)
def test_errors_of_json_commands_are_json(tmp_path, monkeypatch, capsys, line, kind, code, said):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == code
    out, err = capsys.readouterr()
    document = json.loads(err.splitlines()[-1])
    assert (document["error"], document["exit_code"], out) == (kind, code, "")
    assert said in document["message"]
    assert (document["usage"] is None) == (code != 2)


def test_an_interrupt_is_json_if_so_asked(capsys):
    def stop() -> None:
        raise KeyboardInterrupt

    assert code_of(stop, as_json=True) == 130
    assert json.loads(capsys.readouterr().err)["error"] == "Interrupted"


IGNORING = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    time.sleep(50)
"""


def test_an_interrupt_that_other_code_ignores_comes_again(small_run, tmp_path):
    (tmp_path / "ignoring.py").write_text(IGNORING)
    words = ["value", str(small_run / "ledger"), "--task", f"{tmp_path / 'ignoring.py'}:task"]
    program = [sys.executable, "-c", "from fedworth.cli.main import entry; entry()", *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=45)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("interrupted")


SIMULATE = ["simulate", "--out", "new"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["watch", "l", "--rank", "²"],
        [*SIMULATE, "--dtype", "x"],
        [*SIMULATE, "--rate", "1e400"],
        [*SIMULATE, "--rate", "nan"],
        [*SIMULATE, "--rate=--"],
        ["rewards", "run", "--pool", "1", "--cost=--"],
        [*SIMULATE, "--seed", "-1"],
        [*SIMULATE, "--seed", "9" * 30],
        [*SIMULATE, "--rounds", "0"],
        [*SIMULATE, "--rounds", "9" * 18],
        [*SIMULATE, "--clients", "0"],
        [*SIMULATE, "--clients", "9" * 18],
        [*SIMULATE, "--clients", "9" * 18, "--noise", "step:1"],
        [*SIMULATE, "--local-steps", "9" * 18],
        [*SIMULATE, "--local-epochs", "0"],
        [*SIMULATE, "--local-epochs", "2", "--local-steps", "3"],
        [*SIMULATE, "--copy", "²=0"],
        [*SIMULATE, "--noise", "step:1,2"],
        [*SIMULATE, "--noise", "inf"],
        [*SIMULATE, "--model", "mlp", "--hidden", "inf"],
        [*SIMULATE, "--model", "mlp", "--hidden", "9" * 12],
        ["observe", "l", "--out", "new", "--permutations", "-1"],
        ["watch", "l", "--every", "-1"],
        ["watch", "l", "--every", "1e300"],
        ["theory", "observation-1", "--rounds", "0"],
        ["theory", "observation-1", "--rounds", "9" * 12],
    ],
)
def test_an_odd_number_is_refused_at_once(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "expected" in said or "known are" in said
    assert not list(tmp_path.iterdir())


def test_local_epochs_replace_local_steps_and_steps_of_noise_become_shares(tmp_path):
    out = tmp_path / "l"
    words = ["simulate", "--clients", "3", "--participants", "2", "--rounds", "1", "--train-limit", "60"]
    assert main([*words, "--local-epochs", "2", "--batch-size", "10", "--noise", "step:0.1", "--out", str(out)]) == 0
    settings = Ledger.open(out).simulation
    assert settings is not None
    assert (settings["n_steps"], settings["n_epochs"]) == (None, 2)
    assert settings["noise_shares"] == pytest.approx([0, 0.1, 0.2])


@pytest.mark.parametrize("place", ["nowhere/u.npz", "here/u.npz", ".", "here"])
def test_a_place_that_takes_no_output_is_found_before_measuring(tiny_ledger, tmp_path, monkeypatch, capsys, place):
    monkeypatch.setattr(LoopOracle, "utilities", lambda *_: pytest.fail("measured in vain"))
    (tmp_path / "here").write_text("a file, no folder")
    out = str(tmp_path / place)
    for words in (["observe", str(tiny_ledger.folder)], ["complete", str(tmp_path / "u.npz")]):
        assert main([*words, "--oracle", "loop", "--out", out]) == ArtefactError.exit_code
        assert out in capsys.readouterr().err


VALID = ["theory", "observation-1", "--clients", "5", "--participants", "2", "--rounds", "3"]
SCRIPT = "import sys; from fedworth.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("redirected", "code"), [(">&-", 0), (">/dev/full", MachineError.exit_code), ("| exec true", 0), ("2>&-", 0)]
)
def test_an_output_that_takes_nothing_ends_a_command_quietly(redirected, code):
    command = f'set -o pipefail; "$0" -c "$1" "${{@:2}}" {redirected}'
    shell = ["bash", "-c", command, sys.executable, SCRIPT, *VALID]
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
    write_npz(tmp_path / "u.npz", {"\x1b[31mred": np.zeros(3), "other": np.zeros(3)})
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


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


def test_lines_break_between_words_on_a_terminal_and_nowhere_in_a_file(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    line = "a leave-one-out value of an unbelievably-long-name-of-a-client"
    assert whole_words(line, io.StringIO()) == line
    broken = ["a leave-one-out", "value of an", "unbelievably-long-name-of-a-client"]
    assert whole_words(line, Terminal()).splitlines() == broken
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    warn([line])
    assert stream.getvalue().splitlines()[0] == "warning: a"


def test_a_table_that_is_too_wide_goes_on_below_with_its_first_column(monkeypatch):
    rows = (("clinic-a", "+0.25", "10.0%", "+0.50", "20.0%"),)
    headings = ("client", "one", "share", "two", "share")
    table = Table("Values", headings, rows, "a note of six short words", blocks=(2, 2))
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setattr("sys.stdout", stream := Terminal())
    show_table(table)
    assert stream.getvalue().splitlines() == [
        "Values",
        "client      one  share",
        "clinic-a  +0.25  10.0%",
        "",
        "client      two  share",
        "clinic-a  +0.50  20.0%",
        "a note of six short",
        "words",
        "",
    ]
    monkeypatch.setenv("COLUMNS", "16")
    monkeypatch.setattr("sys.stdout", stream := Terminal())
    show_table(table)
    assert [line for line in stream.getvalue().splitlines() if line.startswith("client")] == [
        "client      one",
        "client    share",
        "client      two",
        "client    share",
    ]
    monkeypatch.setattr("sys.stdout", file := io.StringIO())
    show_table(table)
    assert file.getvalue().splitlines()[1] == "client      one  share    two  share"
