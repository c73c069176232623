"""The pages in docs/: made from the numbers beside them, which come from one commit."""

import re
from pathlib import Path

import pandas as pd
import pytest

from studies import pages
from studies.calibration import choices
from studies.setups import FIRST_CHOICE_SEED
from studies.study import study_named

DOCS = Path(__file__).parents[2] / "docs"
ACCOUNTS, MADE = pages.accounts_in(DOCS), pages.pages(DOCS)


@pytest.mark.parametrize("name", sorted(MADE))
def test_the_pages_numbers_are_those_of_the_csv_files(name):
    assert (DOCS / name).read_text() == MADE[name]


@pytest.mark.parametrize("page", sorted({study_named(name).page for name in ACCOUNTS}))
def test_all_rows_of_a_page_come_from_one_commit(page):
    accounts = [account for name, account in ACCOUNTS.items() if study_named(name).page == page]
    (commit,) = {commit for account in accounts for commit in account["commits"]}
    assert len(commit) == 40


@pytest.mark.parametrize("study", [study for study in ACCOUNTS if study != "sensitivity"])
def test_no_seed_that_settings_were_chosen_on_is_reported(study):
    assert (pd.read_csv(DOCS / "figures" / f"{study}.csv").seed < FIRST_CHOICE_SEED).all()


def test_the_studies_run_what_the_rules_choose():
    assert [choice.sentence() for choice in choices(pages.frames_in(DOCS)["sensitivity"]) if not choice.is_used] == []


def test_what_the_page_says_about_the_theory_is_in_the_theory():
    headings = {line.lstrip("#").strip() for line in (DOCS / "theory.md").read_text().splitlines() if line[:1] == "#"}
    anchors = {"".join(c for c in h.lower().replace(" ", "-") if c.isalnum() or c == "-") for h in headings}
    named = re.findall(r"\(theory\.md#([^)]*)\)", pages.THEORY.read_text())
    assert len(named) == 8
    assert set(named) <= anchors
