"""All studies end to end at a tiny scale; a run that was stopped goes on; pages come from the CSV files alone."""

import ast
import shutil
from pathlib import Path

import pandas as pd
import pytest

from studies import NAMES, pages, trials
from studies.__main__ import main, seeds_from
from studies.setups import FIRST_CHOICE_SEED, SCALES, SETUPS
from studies.study import all_studies, cases_of, study_named

SOURCES = [study.name for study in all_studies() if not study.source]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All studies, run once."""
    folder = tmp_path_factory.mktemp("studies")
    main(["all", "--scale", "tiny", "--out", str(folder), "--jobs", "1"])
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_study_leaves_a_figure_and_a_section(done, name):
    study = study_named(name)
    assert (done / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    page = done / ("results-appendix.md" if name in pages.APPENDED else study.page)
    assert f"# {study.title}\n" in page.read_text()


@pytest.mark.parametrize("name", SOURCES)
def test_every_study_leaves_rows_and_an_entry_in_the_manifest(done, name):
    rows = pd.read_csv(done / "figures" / f"{name}.csv")
    account = pages.accounts_in(done)[name]
    assert len(rows) >= account["n_trials"] > 0
    assert account["commits"] == [trials.commit()]
    assert account["command"] == f"python -m studies {name} --scale tiny"


@pytest.mark.parametrize("name", ["regime", "fairness", "noisy-data", "noisy-labels"])
def test_studies_of_values_compare_all_methods(done, name):
    from studies.methods import METHODS

    found = set(pd.read_csv(done / "figures" / f"{name}.csv").method)
    assert found == set(METHODS) - ({"truth"} if name == "noisy-labels" else set())


def test_pages_come_from_the_csv_files_alone(done, tmp_path):
    shutil.copytree(done / "figures", tmp_path / "figures")
    made = pages.pages(tmp_path)
    assert made == {name: (done / name).read_text() for name in made}
    path = tmp_path / "figures" / "noisy-data.csv"
    rows = pd.read_csv(path)
    rows.assign(accuracy=0.77).to_csv(path, index=False)
    assert pages.pages(tmp_path)["results.md"] != made["results.md"]


def test_a_finished_study_runs_no_trial_again(done, monkeypatch):
    monkeypatch.setattr(trials, "run_one", None)
    main(["fairness", "--scale", "tiny", "--out", str(done), "--jobs", "1"])


def test_a_stopped_run_goes_on_and_gives_the_same_rows(done, tmp_path, monkeypatch):
    study = study_named("fairness")
    cases = cases_of(study, "tiny")
    run_one, asked = trials.run_one, []

    def stops_after_two(*args):
        asked.append(args)
        if len(asked) > 2:
            raise KeyboardInterrupt
        run_one(*args)

    with monkeypatch.context() as patch:
        patch.setattr(trials, "run_one", stops_after_two)
        with pytest.raises(KeyboardInterrupt):
            trials.run(study, cases, tmp_path)
    assert [trials.is_done(study, case, tmp_path) for case in cases] == [True, True, False, False, False]
    trials.run(study, cases, tmp_path, n_jobs=2)  # the others side by side
    found, expected = (trials.rows_of(study, cases, folder).drop(columns="cpu_seconds") for folder in (tmp_path, done))
    pd.testing.assert_frame_equal(found, expected)


def test_rows_of_another_commit_are_not_used(done, monkeypatch):
    study = study_named("fairness")
    cases = cases_of(study, "tiny")
    assert all(trials.is_done(study, case, done) for case in cases)
    monkeypatch.setattr(trials, "commit", lambda: "another")
    assert not any(trials.is_done(study, case, done) for case in cases)
    with pytest.raises(SystemExit, match="no trial of fairness"):
        trials.rows_of(study, cases, done)


def test_a_trial_that_fails_leaves_no_rows(tmp_path, monkeypatch):
    case = cases_of(study_named("fairness"), "tiny")[0]
    monkeypatch.setattr("studies.values.measures", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trials.run(study_named("fairness"), [case], tmp_path)
    assert list((tmp_path / "trials").iterdir()) == []


def test_missing_data_ends_with_its_message(tmp_path):
    asked = [
        "fairness",
        "--setup",
        "mnist",
        "--seeds",
        "0",
        "--data",
        str(tmp_path / "nowhere"),
        "--out",
        str(tmp_path),
    ]
    with pytest.raises(SystemExit, match="nowhere"):
        main(asked)


@pytest.mark.parametrize("asked", [["fairnes"], ["fairness", "--setup", "minst"], ["fairness", "--jobs", "0"]])
def test_unknown_names_are_refused(asked, tmp_path):
    with pytest.raises(SystemExit):
        main([*asked, "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_studies_use_public_names_only():
    for path in Path(pages.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert [name for name in modules if name.startswith("fedworth.")] == [], path.name


def test_seeds_are_ranges_or_lists():
    assert seeds_from("0-3") == (0, 1, 2, 3)
    assert seeds_from("3,7-8") == (3, 7, 8)
    for text in ("", "a", "3-1", "1,1"):
        with pytest.raises(Exception, match="expected a range"):
            seeds_from(text)


@pytest.mark.parametrize("name", SOURCES)
def test_every_scale_has_setups_and_seeds_that_settings_were_not_chosen_on(name):
    study = study_named(name)
    assert set(study.scales) == set(SCALES)
    for scale in SCALES:
        assert set(study.scales[scale]) <= set(SETUPS[scale])
        cases = cases_of(study, scale)
        assert len({case.key(name) for case in cases}) == len(cases)
        assert all((case.federation.seed >= FIRST_CHOICE_SEED) == (name == "sensitivity") for case in cases)
