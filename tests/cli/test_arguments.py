"""A slip on the command line is answered with the nearest name and one line of usage; errors can be JSON."""

import io
import json
import re
from pathlib import Path

import pytest

from fedworth.cli.arguments import parse
from fedworth.cli.main import code_of, main, parser
from fedworth.cli.show import show_table, warn, whole_words
from fedworth.cli.simulate import simulation_settings
from fedworth.report.tables import Table


@pytest.mark.parametrize(
    ("line", "meant", "usage"),
    [
        ("runn", "'run'", "fedworth COMMAND ...; more: fedworth --help"),
        ("--vresion", "'--version'", "fedworth COMMAND ...; more: fedworth --help"),
        ("run --ouy x", "'--out'", "fedworth run --out FOLDER [options]; more: fedworth run --help"),
        ("run -out x", "'--out'", "fedworth run --out FOLDER [options]; more: fedworth run --help"),
        ("value u.npz --methd=fedsv", "'--method'", "fedworth value utilities [options]; more: fedworth value --help"),
        ("theory ranc", "'rank'", "fedworth theory STATEMENT ...; more: fedworth theory --help"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(capsys, line, meant, usage):
    assert main(line.split()) == 2
    error, second = capsys.readouterr().err.splitlines()
    assert error.startswith("error: unknown ")
    assert f"did you mean {meant}?" in error
    assert second == f"usage: {usage}"


def test_an_option_like_no_other_is_named_without_a_guess(capsys):
    assert main(["run", "--zzz"]) == 2
    error, _ = capsys.readouterr().err.splitlines()
    assert error == "error: unknown option '--zzz': expected one that this command has"


def test_a_shortened_option_and_a_negative_number_are_no_slips(capsys):
    main(["theory", "observation-1", "--clients", "5", "--partic", "2", "--rounds", "2", "--sigma", "-1"])
    assert "sigma is -1.0, expected" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "known"), [([], "simulate"), (["theory"], "rank-bound")])
def test_a_command_alone_shows_its_help(capsys, line, known):
    with pytest.raises(SystemExit) as stop:
        main(line)
    assert stop.value.code == 0
    assert known in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "kind", "code", "said"),
    [
        ("value none.npz --json", "ArtefactError", 12, "none.npz: no such file"),
        ("value --json", "UsageError", 2, "required: utilities"),
        ("valeu --json", "UsageError", 2, "did you mean 'value'?"),
        ("complete u.npz --out c.npz --completion models --json", "UsageError", 2, "expected --ledger"),
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


def test_the_name_of_a_data_set_is_no_folder_of_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--out", "new", "--data", "mnist"]) == 2
    assert "--dataset mnist" in capsys.readouterr().err
    (tmp_path / "mnist").mkdir()
    assert main(["simulate", "--out", "new", "--data", "mnist", "--copy", "9:0"]) == 2
    assert "--dataset" not in capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


def test_lines_break_between_words_on_a_terminal_and_nowhere_in_a_file(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    line = "a leave-one-out value of an unbelievably-long-name-of-a-client"
    assert whole_words(line, io.StringIO()) == line
    assert whole_words(line, Terminal()).splitlines() == [
        "a leave-one-out",
        "value of an",
        "unbelievably-long-name-of-a-client",
    ]
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    warn([line])
    assert stream.getvalue().splitlines()[0] == "warning: a"


def test_a_table_that_is_too_wide_goes_on_below_with_its_first_column(monkeypatch):
    rows = (("clinic-a", "+0.25", "10.0%", "+0.50", "20.0%"),)
    table = Table(
        "Values", ("client", "one", "share", "two", "share"), rows, "a note of six short words", blocks=(2, 2)
    )
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


def test_the_help_of_all_commands_has_the_exit_codes_and_names_documentation_that_is_there(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main([])
    shown = capsys.readouterr().out
    assert "2 UsageError, 3 DataError" in shown
    assert "14 MachineError, 130 interrupted" in shown
    (place,) = re.findall("^documentation: (.*)$", shown, re.MULTILINE)
    assert Path(place).read_text().startswith("# Quick start")


def test_help_breaks_between_words_and_leaves_examples_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    with pytest.raises(SystemExit):
        main(["value", "--help"])
    shown = capsys.readouterr().out
    assert "  fedworth value utilities.npz --method comfedsv,fedsv --out values\n" in shown
    for word in ("comfedsv-factors,", "leave-one-out", "cross-validation"):
        assert any(word in line for line in shown.splitlines()), word
    described = shown.split("\n\n")[1]
    assert all(len(line) <= 30 for line in described.splitlines())


@pytest.mark.parametrize(("asked", "copies"), [([], ()), (["--copy", "none"], ()), (["--copy", "9=0"], ((9, 0),))])
def test_no_client_is_a_copy_unless_asked(asked, copies):
    args, _ = parse(parser(), ["simulate", "--out", "new", *asked])
    assert simulation_settings(args).copies == copies
