"""Findings, counted by hand, and what a client that cheats sends."""

import csv
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from fedworth.ledger.writer import Answer
from fedworth.studies.conduct.misconduct import COPIED, Memory, kinds
from fedworth.studies.conduct.pairs import interaction_claims
from fedworth.studies.conduct.study import chance_of_so_few, counted, findings, harm_claim, line_of
from fedworth.studies.reproduce import STUDIES, Request, trials_of
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.readings import READERS
from fedworth.studies.trials.trial import Bench


def row(
    kind: str, planted: list[int], said: list[tuple[str, list[int]]], truth: list[float] | None = None
) -> dict[str, Any]:
    found = [{"kind": name, "clients": clients, "sure": 0.95} for name, clients in said]
    federation = {"n_clients": 10, "partition": "iid"}
    return {"federation": federation, "reading": {"kind": kind, "planted": planted, "findings": found, "truth": truth}}


def test_clients_are_counted_once_and_named_rightly_otherwise_or_falsely():
    rows = [
        row("30 % of labels flipped", [0, 1], [("low value", [0]), ("alike", [0, 1]), ("low value", [5])]),
        row("30 % of labels flipped", [0, 1], [("low value", [0]), ("low value", [1]), ("harm", [7])]),
    ]
    found = counted(rows)
    assert (found.n_planted, found.n_right, found.n_other) == (4, 3, 1)
    assert (found.n_honest, found.n_false) == (16, 1)
    assert found.precision == pytest.approx(4 / 5)
    assert found.sure == (0.95, 0.95, 0.95)


def test_whose_answer_was_copied_is_not_called_falsely_named():
    found = counted([row("free rider: another's last update", [0], [("late copy", [0, 4])])])
    assert (found.n_right, found.n_false) == (1, 0)


def test_harm_is_held_against_the_truth_and_false_alarms_against_a_bar():
    truth = [-1.0, *[1.0] * 9]
    rows = {"digits": [row("clean", [], [("harm", [0]), ("harm", [3]), ("low value", [2])], truth)]}
    claims = {claim.what: claim for claim in findings(rows).claims}
    assert claims["clean, IID: false alarms ≤ 5 %"].holds is False
    assert claims["clean, IID: who is said to harm does, as surely as is said"].why.startswith("1 of 2 ")


@pytest.mark.parametrize(("n_wrong", "holds"), [(0, True), (1, True), (2, True), (3, False)])
def test_harm_is_held_to_what_the_findings_say_of_themselves(n_wrong, holds):
    """Of ten statements of 95 % two or more are wrong in 9 % of cases, three or more in 1 %."""
    truth = [1.0] * n_wrong + [-1.0] * (10 - n_wrong)
    rows = [row("clean", [], [("harm", [k]) for k in range(10)], truth)]
    assert harm_claim("clean", counted(rows)).holds is holds


@pytest.mark.parametrize("n_right", [0, 3, 5])
def test_the_chance_of_so_few_is_binomial_where_all_are_as_sure(n_right):
    assert chance_of_so_few(n_right, [0.9] * 5) == pytest.approx(stats.binom.cdf(n_right, 5, 0.9))


def test_a_copied_pair_is_judged_by_its_sign_and_by_its_size():
    def copied(index: float, other: float) -> dict[str, Any]:
        made = row(COPIED, [0, 9], [])
        pairs = {"fixed": [[0, 9, index], [1, 2, other]], "uniform": [[0, 9, 0.5], [1, 2, -0.1]]}
        return {**made, "reading": {**made["reading"], "interactions": pairs}}

    said = interaction_claims([copied(-2.0, 1.0), copied(-2.0, 3.0)], {"iid": "IID", "two-class": "two classes"})
    assert [(claim.holds, claim.why) for claim in said] == [
        (True, "2 of 2 federations"),
        (False, "1 of 2 federations; the most negative of all pairs in 2"),
        (False, "0 of 2 federations"),
        (True, "2 of 2 federations; the most negative of all pairs in 0"),
    ]


def models(*weights: float) -> list[dict[str, torch.Tensor]]:
    return [{"w": torch.tensor([weight])} for weight in weights]


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("free rider: no update", [2.0, 5.0, 9.0]),
        ("free rider: repeats its first update", [2.0, 6.0, 10.0]),
        ("free rider: another's last update", [2.0, 7.0, 11.0]),
        ("free rider: the server's last step × 1.5", [2.0, 11.0, 15.0]),
        ("update × 10", [2.0, 25.0, 39.0]),
        ("replay of the last model", [2.0, 2.0, 12.0]),
    ],
)
def test_a_client_that_cheats_sends(name, sent):
    """Global models 1, 5, 9; honest updates 1, 2, 3; the other client always moves by 2."""
    act = next(kind.act for kind in kinds(10) if kind.name == name)
    assert act is not None
    memory, found = Memory(act), []
    for t, (start, honest, other) in enumerate(zip(models(1, 5, 9), models(2, 7, 12), models(3, 7, 11), strict=True)):
        answers = memory(t, start, {"0": Answer(honest, 5), "1": Answer(other, 5)})
        assert answers["1"].model is other
        found.append(float(answers["0"].model["w"]))
    assert found == pytest.approx(sent)


def test_the_page_says_what_the_numbers_are():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "findings.md").read_text()
    rows: list[dict[str, Any]] = list(csv.DictReader((docs / "figures" / "findings.csv").read_text().splitlines()))
    for numbers in rows:
        assert "| " + " | ".join(line_of(numbers)[1:]) + " |" in page
    clean = [float(numbers["false_alarms"]) for numbers in rows if numbers["kind"] == "clean"]
    assert len(clean) == 2
    assert max(clean) <= 0.05


def test_of_a_copy_the_interactions_of_all_pairs_are_kept(tmp_path):
    extent = Extent(1, 3, special=COPIED)
    trial = trials_of(STUDIES["findings"], Request("tiny"), "digits", extent)[0]
    reading = READERS[trial.reading](trial, Bench(tmp_path))
    assert set(reading["interactions"]) == {"fixed", "uniform"}
    for pairs in reading["interactions"].values():
        assert {(first, second) for first, second, _ in pairs} == set(combinations(range(10), 2))
