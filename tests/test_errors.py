"""Every error has its exit code, told in one place."""

import inspect
import re
from pathlib import Path

import pytest

from fedworth import errors
from fedworth.cli.main import code_of
from fedworth.errors import FedworthError, UsageError, unknown_name

CLASSES = {
    name: found for name, found in vars(errors).items() if inspect.isclass(found) and issubclass(found, FedworthError)
}
CODES = {name: found.exit_code for name, found in CLASSES.items()}
PAGE = Path(__file__).parent.parent / "docs" / "exit-codes.md"
ROWS = re.findall(r"^\| *`?(\d+)`? *\| *`?(\w+Error)`? *\| *(\S.*?) *\|$", PAGE.read_text(), flags=re.MULTILINE)
LISTED = [(name, code) for code, name, _ in ROWS]


def test_exit_codes_are_distinct_and_leave_success_alone():
    assert len(set(CODES.values())) == len(CODES)
    assert sorted(CODES.values()) == list(range(1, len(CODES) + 1))


def test_every_error_states_its_own_code_and_meaning():
    for found in CLASSES.values():
        assert "exit_code" in vars(found)
        assert found.__doc__


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    drawn = re.findall(r"^[ │├└─]*(\w+Error) +(\d+) ", errors.__doc__ or "", flags=re.MULTILINE)
    assert {name: int(code) for name, code in drawn} == CODES
    assert len(drawn) == len(CODES)


def test_the_page_of_exit_codes_lists_exactly_the_errors_there_are():
    listed = {name: int(code) for name, code in LISTED if name != "FedworthError"}
    assert listed == {name: code for name, code in CODES.items() if name != "FedworthError"}
    assert len(LISTED) == len(dict(LISTED))


@pytest.mark.parametrize(("name", "code"), LISTED)
def test_a_command_that_fails_ends_with_the_code_of_the_page_and_one_line(name, code, capsys):
    def fail() -> None:
        raise CLASSES[name]("here: found this, expected that; do so")

    assert code_of(fail) == int(code)
    assert capsys.readouterr().err == "error: here: found this, expected that; do so\n"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("minst", "unknown data set 'minst': did you mean 'mnist'? known are cifar10, digits, mnist"),
        ("digit", "unknown data set 'digit': did you mean 'digits'? known are cifar10, digits, mnist"),
        ("qqqqq", "unknown data set 'qqqqq': known are cifar10, digits, mnist"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest_one(found, expected):
    error = unknown_name("data set", found, ("mnist", "digits", "cifar10"))
    assert isinstance(error, UsageError)
    assert str(error) == expected
