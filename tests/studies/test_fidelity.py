"""Fidelity: its numbers by hand, its bars, the settings it names; and the page says what the numbers are."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from fedworth.errors import UsageError
from fedworth.storage import make_folder, write_json
from fedworth.studies.fidelity.bars import claims_of
from fedworth.studies.fidelity.numbers import found_in, grouped
from fedworth.studies.fidelity.settings import setting_of
from fedworth.studies.fidelity.study import findings, lines_of
from fedworth.studies.reproduce import STUDIES, Request, reproduce, trials_of
from fedworth.studies.trials.settings import extents_of
from fedworth.studies.trials.trial import Bench

DOCS = Path(__file__).parents[2] / "docs"


def row_of(values: dict[str, list[float]], *, half_width: float = 0.5, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of ten clients, the last a copy of the first unless said."""
    federation = {
        "dataset": "digits", "model": "mlp", "partition": "two-class", "n_clients": 10, "n_rounds": 10,
        "copies": [[9, 0]], "noise_shares": [], "flip_shares": [], "aggregation": "uniform", "everyone_heard": True,
        **changes,
    }  # fmt: skip
    methods = [key for key in values if key != "truth"]
    reading = {
        "values": values,
        "deviations": {key: [half_width / 1.645] * len(values[key]) for key in methods},
        "intervals": {key: [[x - half_width, x + half_width] for x in values[key]] for key in methods},
        "ratio": dict.fromkeys(methods, 0.2),
        "evaluations": dict.fromkeys(methods, 100),
        "seconds": dict.fromkeys(methods, 1.5),
        "truth_deviations": [0.0] * len(values["truth"]),
    }
    return {"seed": seed, "federation": federation, "reading": reading}


TRUTH = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0]
NEAR = [0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0, 0.1]
FAR = [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 1.0]


def test_the_numbers_of_one_run():
    row = row_of({"truth": TRUTH, "models": NEAR, "fedsv": FAR})
    near, far = found_in(row, "models"), found_in(row, "fedsv")
    assert near is not None
    assert far is not None
    assert (near.coverage, near.d, near.gap, near.jaccard) == (0.9, 0.0, 0.0, None)
    assert near.error < 0.2 < 1 < far.error
    assert near.correlation == 1
    assert far.d == pytest.approx(7 / 8)
    assert found_in(row, "factors") is None


def test_noisy_clients_are_found_among_the_least_valued():
    row = row_of({"truth": TRUTH, "models": NEAR}, copies=[], flip_shares=[0.3, 0.3] + [0.0] * 8)
    found = found_in(row, "models")
    assert found is not None
    assert found.jaccard == pytest.approx(1 / 3)  # 0 and 9 are the least, 0 and 1 the noisy ones
    assert found.d is None


def test_settings_are_named_by_what_they_are():
    assert setting_of(row_of({"truth": TRUTH})["federation"]) == "digits, two classes each, T = 10"
    odd = row_of({"truth": TRUTH}, model="cnn", partition="iid", n_clients=100, copies_shuffled=True)["federation"]
    assert setting_of(odd) == "digits CNN, IID, N = 100, T = 10, copies draw other batches"


def test_every_setting_of_the_page_has_a_name_of_its_own_and_fresh_seeds():
    names = {}
    for dataset, extent in extents_of("page", "fidelity").items():
        made = trials_of(STUDIES["fidelity"], Request("page"), dataset, extent)
        names[dataset] = {setting_of(trial.federation.document()) for trial in made}
        assert len(names[dataset]) == 1
        assert all(trial.federation.seed < 1000 and trial.federation.with_truth for trial in made)
    assert len(set.union(*names.values())) == len(names)


def test_ten_clients_are_shown_on_seeds_that_nothing_was_chosen_on():
    for dataset, extent in extents_of("page", "fidelity").items():
        made = trials_of(STUDIES["fidelity"], Request("page"), dataset, extent)
        assert made[0].federation.seed == (100 if made[0].federation.n_clients == 10 else 0)
        if made[0].federation.n_clients == 10:
            assert len(made) >= (5 if made[0].federation.model == "cnn" else 20)


def test_noisy_labels_of_ten_clients_have_as_many_participants_as_the_others():
    extent = extents_of("page", "fidelity")["mnist-labels-10"]
    federation = trials_of(STUDIES["fidelity"], Request("page"), "mnist-labels-10", extent)[0].federation
    assert (federation.n_clients, federation.n_participants) == (10, 3)
    assert federation.flip_shares == (0.3, 0.3, *[0.0] * 8)
    assert setting_of(federation.document()) == "mnist, noisy labels, T = 10"


def test_the_coverage_of_every_completion_is_shown():
    rows = {"digits": [row_of({"truth": TRUTH, "models": NEAR, "factors": FAR, "fedsv": FAR})]}
    (line,) = findings(rows).lines
    assert "0.10 / 0.90" in line


def test_what_a_folder_has_is_written_down_without_running_anything(tmp_path):
    bench, asked = Bench(tmp_path), Request("tiny", as_far_as_run=True)
    with pytest.raises(UsageError, match="no trial of this study"):
        reproduce("fidelity", asked, bench)
    extent = extents_of("tiny", "fidelity")["digits"]
    done, *left = trials_of(STUDIES["fidelity"], asked, "digits", extent)
    assert left
    row = row_of({"truth": TRUTH, "models": NEAR, "fedsv": FAR})
    make_folder(tmp_path / "trials")
    write_json(tmp_path / "trials" / f"{done.key}.json", row)
    found = reproduce("fidelity", asked, bench)
    assert [cells[2] for cells in found.rows] == [1, 1]
    assert "`fedworth reproduce fidelity --as-far-as-run --scale tiny`" in (tmp_path / "fidelity.md").read_text()


def test_bars_are_held_or_not():
    rows = {"digits": [row_of({"truth": TRUTH, "models": NEAR, "fedsv": FAR, "factors": FAR}, seed=s) for s in (0, 1)]}
    held = {claim.what.rpartition(": ")[2]: claim.holds for claim in findings(rows).claims}
    assert held == {
        "error over the better of FedSV and factors": True,
        "rank correlation with the truth": True,
        "coverage of 90 % intervals": True,
        "P(d > .5) of copies": True,
    }
    wrong = {"digits": [row_of({"truth": TRUTH, "models": FAR, "fedsv": NEAR, "factors": NEAR})]}
    assert not any(claim.holds for claim in findings(wrong).claims)


def test_a_bar_says_where_fewer_seeds_were_run_than_it_asks_for():
    rows = {"digits": [row_of({"truth": TRUTH, "models": NEAR, "fedsv": FAR, "factors": FAR}, seed=s) for s in (0, 1)]}
    assert findings(rows).claims[0].why.endswith("2 of the 20 seeds that it asks for")
    many = [{**row, "seed": seed} for seed in range(20) for row in rows["digits"][:1]]
    assert findings({"digits": many}).claims[0].why.endswith("20 seeds")


def test_other_batches_are_held_to_the_other_methods_gap():
    def gaps(models: list[float], fedsv: list[float]) -> bool | None:
        rows = {"digits": [row_of({"truth": TRUTH, "models": models, "fedsv": fedsv}, copies_shuffled=True)]}
        return next(claim.holds for claim in findings(rows).claims if "gap" in claim.what)

    assert gaps(NEAR, FAR) is True
    assert gaps(FAR, NEAR) is False


def test_predicted_and_real_errors_are_compared_over_runs():
    rows = {"digits": [row_of({"truth": TRUTH, "models": NEAR, "fedsv": FAR}, seed=s) for s in range(3)]}
    for place, row in enumerate(rows["digits"]):
        row["reading"]["ratio"]["models"] = 0.1 * (place + 1)
        row["reading"]["values"]["models"] = [x + place * (-1) ** k for k, x in enumerate(NEAR)]
    table = grouped(rows)
    found = claims_of([], table)[-1]
    assert (found.holds, found.why) == (True, "1.00, bar ≥ 0.8, 3 runs")


def test_the_heard_round_stands_for_all_rounds():
    row = row_of({"truth": TRUTH, "heard-round": [x / 10 for x in TRUTH]})
    found = found_in(row, "heard-round")
    assert found is not None
    assert found.error == pytest.approx(0, abs=1e-12)


def test_the_page_says_what_the_numbers_are():
    rows = list(csv.DictReader((DOCS / "figures" / "fidelity.csv").read_text().splitlines()))
    page = (DOCS / "fidelity.md").read_text()
    lines = lines_of(rows)
    assert len(lines) >= 10
    for line in lines:
        assert "| " + " | ".join(line) + " |" in page


def test_the_page_says_of_every_bar_whether_it_is_held():
    page = (DOCS / "fidelity.md").read_text()
    said = re.search(r"(\d+) of (\d+) are held", page)
    assert said is not None
    held, missed = page.count("\n- ✔ "), page.count("\n- ✘ ")
    assert (int(said[1]), int(said[2])) == (held, held + missed)
