"""The studies end to end at a tiny scale: what they write, that a killed one goes on, that they use public names."""

import ast
import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedworth
import fedworth.studies.reproduce as reproducing
from fedworth.cli.main import main
from fedworth.errors import DataError, UsageError
from fedworth.names import CHOICES
from fedworth.studies.reproduce import PAGES, PAPERS, STUDIES, Request, reproduce, requests_for, trials_of
from fedworth.studies.results.manifest import accounts_in
from fedworth.studies.results.page import APPENDED, pages_of
from fedworth.studies.trials.commit import commit_of_source
from fedworth.studies.trials.extents import EXTENTS
from fedworth.studies.trials.methods import METHODS
from fedworth.studies.trials.readings import READERS
from fedworth.studies.trials.settings import SETUPS, extents_of, seeds_from
from fedworth.studies.trials.trial import Bench, Trial, row_of

pytest.importorskip("matplotlib")

TINY = Request("tiny")
FOLDER = Path(reproducing.__file__).parent


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All studies, run once."""
    folder = tmp_path_factory.mktemp("studies")
    for name in STUDIES:
        reproduce(name, TINY, Bench(folder))
    return folder


def lines_of(folder: Path, study: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "figures" / f"{study}.csv").read_text().splitlines()))


def trials_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "trials").iterdir())}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_leaves_numbers_a_picture_and_a_section(done, name):
    assert lines_of(done, name)
    assert (done / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    papers = "results-appendix.md" if name in APPENDED else "results.md"
    page = (done / (papers if name in PAPERS else PAGES[name])).read_text()
    assert f"fedworth reproduce {name} --scale tiny" in page
    assert f"figures/{name}." in page


def test_the_manifest_says_commit_command_and_settings_of_every_study(done):
    found = accounts_in(done / "figures")
    assert tuple(found) == PAPERS
    for name, account in found.items():
        assert account.commits == (commit_of_source(),)
        assert account.command == f"fedworth reproduce {name} --scale tiny"
        assert set(account.settings or {}) == set(EXTENTS["tiny"][name])


def test_the_pages_are_made_of_the_numbers_beside_them_alone(done, tmp_path):
    pages = {name: (done / name).read_text() for name in ("results.md", "results-appendix.md")}
    shutil.copytree(done / "figures", tmp_path / "figures")
    assert pages_of(tmp_path, [STUDIES[name] for name in PAPERS]) == pages
    csv_file = tmp_path / "figures" / "noisy-data.csv"
    csv_file.write_text(csv_file.read_text().replace(lines_of(done, "noisy-data")[0]["accuracy"], "0.77"))
    assert pages_of(tmp_path, [STUDIES[name] for name in PAPERS]) != pages


def test_a_study_that_was_not_run_is_said_to_be_missing(done, tmp_path):
    shutil.copytree(done / "figures", tmp_path / "figures")
    manifest = json.loads((tmp_path / "figures" / "manifest.json").read_text())
    (tmp_path / "figures" / "manifest.json").write_text(json.dumps({n: manifest[n] for n in ("regime", "rank")}))
    page = pages_of(tmp_path, [STUDIES[name] for name in PAPERS])["results.md"]
    assert "**Not run** at this commit, so not on this page: unfairness, fairness, noisy-data" in page


@pytest.mark.parametrize("name", ["regime", "fairness", "noisy-data", "noisy-labels"])
def test_every_method_is_in_every_study_of_values(done, name):
    found = {line["method"] for line in lines_of(done, name)}
    assert found == set(METHODS) - ({"truth"} if name == "noisy-labels" else set())


def test_sensitivity_varies_what_the_paper_leaves_open(done):
    found = {(line["what"], line["setting"]) for line in lines_of(done, "sensitivity")}
    whats = {"steps × rate", "relative penalty", "rank", "noise strength", "permutations"}
    assert {what for what, _ in found} == whats
    assert {setting for what, setting in found if what == "permutations"} == {"squares", "random"}
    steps = {setting.split(" × ")[0] for what, setting in found if what == "steps × rate"}
    assert steps == {"1", "10", "50"}


def test_studies_share_trials():
    """Unfairness and fairness look at the same federations of the same data."""
    keys = {}
    for name in ("unfairness", "fairness"):
        extent = extents_of("tiny", "unfairness")["digits"]
        keys[name] = [trial.key for trial in trials_of(STUDIES[name], TINY, "digits", extent)]
    assert keys["unfairness"] == keys["fairness"]


def test_a_second_run_runs_no_trial_again(done, monkeypatch):
    monkeypatch.setattr(reproducing, "READERS", {})
    before = trials_in(done)
    reproduce("fairness", TINY, Bench(done))
    assert trials_in(done) == before


def test_killed_and_resumed_gives_equal_bytes(done, tmp_path):
    """Killed before the second, the third and the fifth of its trials."""
    names = ("figures/fairness.csv", "figures/fairness.svg")
    for n_trials in (1, 2, 4):
        with pytest.raises(Killed):
            reproduce("fairness", TINY, Bench(tmp_path, progress=_killer(n_trials)))
    reproduce("fairness", TINY, Bench(tmp_path))
    assert {name: (tmp_path / name).read_bytes() for name in names} == {n: (done / n).read_bytes() for n in names}
    assert trials_in(tmp_path).items() <= trials_in(done).items()


def test_side_by_side_gives_equal_bytes(done, tmp_path):
    reproduce("fairness", TINY, Bench(tmp_path, n_jobs=2))
    assert {name: found for name, found in trials_in(done).items() if name in trials_in(tmp_path)} == trials_in(
        tmp_path
    )
    assert (tmp_path / "figures" / "fairness.csv").read_bytes() == (done / "figures" / "fairness.csv").read_bytes()


def test_an_error_side_by_side_is_the_same_error(tmp_path):
    arguments = ["reproduce", "fairness", "--dataset", "mnist", "--seeds", "0-1", "--data", str(tmp_path / "nowhere")]
    for jobs in ("1", "2"):
        assert main([*arguments, "--out", str(tmp_path), "--jobs", jobs]) == DataError.exit_code
    assert main([*arguments, "--out", str(tmp_path), "--jobs", "0"]) == UsageError.exit_code


def test_a_trial_killed_between_training_and_observing_goes_on(done, tmp_path, monkeypatch):
    trial = _first_trial()

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("fedworth.studies.trials.trial.FastOracle", killed)
        with pytest.raises(Killed):
            row_of(trial, Bench(tmp_path), READERS)
    assert list((tmp_path / "work").iterdir()) != []
    row_of(trial, Bench(tmp_path), READERS)
    assert list((tmp_path / "work").iterdir()) == []
    assert trials_in(tmp_path).items() <= trials_in(done).items()


def test_a_trial_killed_while_it_is_read_leaves_no_row(tmp_path):
    trial = _first_trial()

    def read(*_: object) -> dict[str, object]:
        raise Killed

    with pytest.raises(Killed):
        row_of(trial, Bench(tmp_path), {"values": read})
    assert list((tmp_path / "trials").iterdir()) == []


def test_costs_are_timed_on_one_thread(tmp_path, monkeypatch):
    asked = []

    def oracle(_: object, **settings: object) -> None:
        asked.append(settings)
        raise Killed

    monkeypatch.setattr("fedworth.studies.trials.readings.FastOracle", oracle)
    extent = extents_of("tiny", "time")["synthetic"]
    with pytest.raises(Killed):
        row_of(trials_of(STUDIES["time"], TINY, "synthetic", extent)[0], Bench(tmp_path), READERS)
    assert asked == [{"n_threads": 1}]


def test_another_setting_is_another_trial():
    trial = _first_trial()
    others = [Trial(trial.federation, reading="matrix"), Trial(trial.federation, monte_carlo=True)]
    others.append(Trial(trial.federation, without_models=True))
    assert len({trial.key, *(other.key for other in others)}) == 4
    assert others[0].utilities_key == trial.utilities_key != others[1].utilities_key


def test_the_command_prints_the_verdict(done, capsys):
    assert main(["reproduce", "unfairness", "--scale", "tiny", "--out", str(done)]) == 0
    assert "unfairness: holds in part" in capsys.readouterr().out
    assert main(["reproduce", "models", "--scale", "tiny", "--out", str(done), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["study"] == "models"


def test_unknown_names_are_refused(tmp_path):
    for arguments in (["fairnes"], ["fairness", "--dataset", "minst"], ["fairness", "--scale", "huge"]):
        assert main(["reproduce", *arguments, "--out", str(tmp_path)]) == UsageError.exit_code


def test_all_takes_the_studies_that_have_the_data():
    found = requests_for("all", Request("page", ("fashion-mnist", "labels")))
    assert set(found) == {"fairness", "noisy-labels", "sensitivity"}
    assert set(requests_for("all", TINY)) == set(STUDIES)
    assert requests_for("rank", TINY) == {"rank": TINY}


def test_seeds_come_as_ranges_or_lists():
    assert seeds_from("0-3") == (0, 1, 2, 3)
    assert seeds_from("3,7-8") == (3, 7, 8)
    for text in ("", "a", "3-1", "1,1"):
        with pytest.raises(UsageError):
            seeds_from(text)


def test_every_scale_has_every_study_and_a_setup_for_its_data():
    for scale in CHOICES["scale"]:
        assert set(EXTENTS[scale]) == set(STUDIES)
        assert {name for study in EXTENTS[scale].values() for name in study} <= set(SETUPS[scale])


def test_settings_were_chosen_on_other_seeds_than_those_reported():
    for scale in ("quick", "page", "paper"):
        for name, study in STUDIES.items():
            for dataset, extent in extents_of(scale, name).items():
                seeds = {trial.federation.seed for trial in trials_of(study, Request(scale), dataset, extent)}
                assert all((seed >= 1000) == (name == "sensitivity") for seed in seeds)


def test_experiments_use_public_names_only_and_plot_in_one_room():
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            private = [name for module, name in _imported(node) if module.startswith("fedworth") and name[:1] == "_"]
            assert private == [], path.name
            plots = [module for module, _ in _imported(node) if module.startswith("matplotlib")]
            assert not plots or path.name == "pictures.py", path.name


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ImportFrom):
        yield from ((node.module or "", alias.name) for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)


def _first_trial() -> Trial:
    extent = extents_of("tiny", "fairness")["digits"]
    return trials_of(STUDIES["fairness"], TINY, "digits", extent)[0]


def _killer(n_trials: int):
    def progress(what: str, n_done: int, n_all: int) -> None:
        if n_done == n_trials:
            raise Killed(f"{what}: {n_done} of {n_all}")

    return progress


def test_a_study_in_python_is_the_one_of_the_command_and_its_panels_are_drawn_on_axes_of_yours(done):
    from matplotlib.figure import Figure

    before = trials_in(done)
    found = fedworth.study("fairness", str(done), scale="tiny")
    assert trials_in(done) == before
    assert found.csv_text() == (done / "figures" / "fairness.csv").read_text()
    axes = Figure().subplots()
    assert fedworth.plot_panel(found.panels[0], axes) is axes
    assert axes.get_title() == found.panels[0].title
    assert axes.lines or axes.patches
