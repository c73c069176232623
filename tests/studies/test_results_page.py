"""The pages of results that are in the repository: made of the numbers beside them, all of one commit."""

from pathlib import Path

import pytest

from fedworth.studies.reproduce import PAGES, PAPERS, STUDIES
from fedworth.studies.results.manifest import accounts_in
from fedworth.studies.results.page import pages_of
from fedworth.studies.trials.settings import FIRST_CHOICE_SEED

pytest.importorskip("matplotlib")

DOCS = Path(__file__).parents[2] / "docs"
ACCOUNTS = accounts_in(DOCS / "figures")


@pytest.mark.parametrize("name", ["results.md", "results-appendix.md"])
def test_the_pages_numbers_are_those_of_the_csvs(name):
    assert (DOCS / name).read_text() == pages_of(DOCS, [STUDIES[study] for study in PAPERS])[name]


def test_all_rows_are_of_one_commit_without_changes():
    (commit,) = {commit for account in ACCOUNTS.values() for commit in account.commits}
    assert len(commit) == 40
    assert set(commit) <= set("0123456789abcdef")


@pytest.mark.parametrize("study", [study for study in ACCOUNTS if study != "sensitivity"])
def test_no_seed_that_settings_were_chosen_on_is_reported(study):
    lines = (DOCS / "figures" / f"{study}.csv").read_text().splitlines()
    place = lines[0].split(",").index("seed")
    assert all(int(line.split(",")[place]) < FIRST_CHOICE_SEED for line in lines[1:])


def test_every_number_has_its_picture_and_nothing_else_is_left():
    names = {path.stem for path in (DOCS / "figures").glob("*.csv")} - set(PAGES)
    assert names == set(ACCOUNTS)
    assert all((DOCS / "figures" / f"{name}.svg").is_file() for name in names)
