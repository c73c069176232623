"""Reproduce a study: run those of its trials that are not on disk yet, then write what they show.

FOLDER/trials/ utilities/ clock/    what can be resumed (see `trial`)
FOLDER/figures/STUDY.csv            the numbers, a line a seed and method
FOLDER/figures/STUDY.svg            the picture (STUDY-more.svg: the appendix's)
FOLDER/figures/manifest.json        by study: commit, command, settings
FOLDER/results.md                   the page, of all of the paper's studies run so far; results-appendix.md beside it
FOLDER/fidelity.md findings.md      the pages of studies that are none of the paper's; the first ends with `measures`
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from fedworth.errors import UsageError, unknown_name
from fedworth.names import Scale, checked_name
from fedworth.simulation.settings import SimulationSettings
from fedworth.storage import Place, make_folder, write_whole
from fedworth.studies import (
    fairness,
    measures,
    models,
    noisy_data,
    noisy_labels,
    rank,
    regime,
    sensitivity,
    spectrum,
    time,
    unfairness,
)
from fedworth.studies.conduct import study as conduct
from fedworth.studies.fidelity import study as fidelity
from fedworth.studies.results.manifest import LEFT_OUT, Account, write_account
from fedworth.studies.results.outcome import Outcome
from fedworth.studies.results.page import lone_page, pages_of, part_of_page
from fedworth.studies.results.pictures import draw
from fedworth.studies.results.study import Study
from fedworth.studies.trials.crew import run_side_by_side
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.readings import READERS
from fedworth.studies.trials.settings import extents_of, setup_of
from fedworth.studies.trials.trial import Bench, Row, Trial, is_done, row_of, spent_on

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        regime.STUDY,
        unfairness.STUDY,
        fairness.STUDY,
        noisy_data.STUDY,
        noisy_labels.STUDY,
        spectrum.STUDY,
        rank.STUDY,
        models.STUDY,
        time.STUDY,
        sensitivity.STUDY,
        fidelity.STUDY,
        measures.STUDY,
        conduct.STUDY,
    )
}
PAGES = {"fidelity": "fidelity.md", "measures": "fidelity.md", "findings": "findings.md"}
"""Studies of fedworth's own, and the page that each is on."""

PAPERS = tuple(name for name in STUDIES if name not in PAGES)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a study; no data sets and no seeds mean those of the scale."""

    scale: Scale = "quick"
    datasets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    as_far_as_run: bool = False  # whether nothing is run: what the folder has is written down

    def command(self, study: str) -> str:
        """The command that asks for it."""
        options = [f"--dataset {name}" for name in self.datasets]
        options += [f"--seeds {','.join(map(str, self.seeds))}"] if self.seeds else []
        options += ["--as-far-as-run"] if self.as_far_as_run else []
        return " ".join(["fedworth reproduce", study, *options, f"--scale {self.scale}"])


def requests_for(name: str, request: Request) -> dict[str, Request]:
    """What to run: one study, or for "all" every study, with those of the named data sets that it has."""
    if name != "all":
        return {name: request}
    found = {}
    for study in STUDIES:
        known = tuple(dataset for dataset in request.datasets if dataset in extents_of(request.scale, study))
        if known or not request.datasets:
            found[study] = replace(request, datasets=known)
    return found


def reproduce(name: str, request: Request, bench: Bench) -> Outcome:
    """Run a study as far as it has not been run, and write down what it found."""
    if name not in STUDIES:
        raise unknown_name("study", name, (*STUDIES, "all"))
    study = STUDIES[name]
    extents = extents_of(request.scale, name, request.datasets)
    planned = {dataset: trials_of(study, request, dataset, extent) for dataset, extent in extents.items()}
    if request.as_far_as_run:
        planned = _as_far_as_run(planned, bench)
    rows = _run(study, planned, bench)
    outcome = study.findings(rows)
    _write(outcome, study, _account(name, request, planned, bench), bench.folder)
    return outcome


def study(
    name: str,
    folder: Place,
    *,
    scale: Scale = "quick",
    datasets: Sequence[str] = (),
    seeds: Sequence[int] = (),
    n_jobs: int = 1,
) -> Outcome:
    """Rerun one of the paper's studies, or `fidelity`; what `folder` has of it already is not run again.

    Args:
        name: The study, as `fedworth reproduce` names it: `fairness`, `rank`, `time`, …
        folder: Where trials, numbers, pictures and the page are kept.
        scale: `quick`, `page` (as the results page) or `paper`.
        datasets: Only these data sets of the study; all of the scale's if there are none.
        seeds: The seeds to run; those of the scale if there are none.
        n_jobs: How many trials run side by side.

    Returns:
        What was found: `rows`, `claims` with their verdicts, and `panels`, which `plot_panel` draws.

    Example:
        found = fedworth.study("fairness", "runs/studies", datasets=["digits"], seeds=[0, 1])
    """
    request = Request(checked_name("scale", scale), tuple(datasets), tuple(seeds))
    return reproduce(name, request, Bench(Path(folder), n_jobs=n_jobs))


def write_pages(folder: Path) -> None:
    """Write the pages of results once more, from the numbers in the folder."""
    for name, text in pages_of(folder, [STUDIES[study] for study in PAPERS]).items():
        write_whole(folder / name, text.encode())


def trials_of(study: Study, request: Request, dataset: str, extent: Extent) -> list[Trial]:
    """The trials of one data set: on the seeds asked for, or on those of the scale."""
    first = study.first_seed + extent.first_seed
    seeds = request.seeds or tuple(range(first, first + extent.n_seeds))
    return study.trials(setup_of(request.scale, dataset), extent, seeds)


def _as_far_as_run(planned: dict[str, list[Trial]], bench: Bench) -> dict[str, list[Trial]]:
    """Those of the trials whose rows are on disk, and the data sets that have any."""
    done = {dataset: [trial for trial in trials if is_done(trial, bench)] for dataset, trials in planned.items()}
    if not any(done.values()):
        raise UsageError(f"{bench.folder}: no trial of this study has been run there; run it without --as-far-as-run")
    return {dataset: trials for dataset, trials in done.items() if trials}


def _run(study: Study, planned: dict[str, list[Trial]], bench: Bench) -> dict[str, Sequence[Row]]:
    """The rows of all trials: those that are not on disk are run, side by side if the bench has the hands for it."""
    trials = [trial for found in planned.values() for trial in found]
    n_left = sum(not is_done(trial, bench) for trial in trials)
    steps = count(len(trials) - n_left)

    def done() -> None:
        bench.progress(f"{study.name}: trials", next(steps), len(trials))

    done()
    if bench.n_jobs > 1 and n_left > 1 and not study.is_timed:
        run_side_by_side(trials, bench, done)
    rows: dict[str, Sequence[Row]] = {}
    for dataset, of_dataset in planned.items():
        found = []
        for trial in of_dataset:
            is_new = not is_done(trial, bench)
            found.append(row_of(trial, bench, READERS))
            if is_new:
                done()
        rows[dataset] = found
    return rows


def _account(name: str, request: Request, planned: dict[str, list[Trial]], bench: Bench) -> Account:
    trials = [trial for found in planned.values() for trial in found]
    sentences = [extent_sentence(dataset, found) for dataset, found in planned.items()]
    left = [dataset for dataset in extents_of(request.scale, name) if dataset not in planned]
    if left:
        sentences.append(f"{LEFT_OUT}, though part of this scale: {', '.join(left)}.")
    seconds, commits = spent_on(trials, bench)
    shared = _keys_of_earlier(name, request)
    new_seconds, _ = spent_on([trial for trial in trials if trial.key not in shared], bench)
    settings = {dataset: found[0].federation.document() for dataset, found in planned.items()}
    command = request.command(name)
    return Account(command, request.scale, len(trials), seconds, new_seconds, tuple(sentences), commits, settings)


def _keys_of_earlier(name: str, request: Request) -> set[str]:
    """The trials of the paper's studies that come before this one."""
    earlier = [STUDIES[study] for study in PAPERS[: PAPERS.index(name)]] if name in PAPERS else []
    return {
        trial.key
        for study in earlier
        for dataset, extent in extents_of(request.scale, study.name).items()
        for trial in trials_of(study, request, dataset, extent)
    }


def _write(outcome: Outcome, study: Study, account: Account, folder: Path) -> None:
    figures = folder / "figures"
    make_folder(figures)
    write_whole(figures / f"{study.name}.csv", outcome.csv_text().encode())
    draw(outcome.panels, figures / f"{study.name}.svg")
    if outcome.all_panels:
        draw(outcome.all_panels, figures / f"{study.name}-more.svg")
    if study.name in PAPERS:
        write_account(figures, study.name, account)
        write_pages(folder)
        return
    own = part_of_page if study.name == "measures" else lone_page
    make_folder(folder / "parts")
    write_whole(folder / "parts" / f"{study.name}.md", own(outcome, study.remarks, account).encode())
    parts = [folder / "parts" / f"{name}.md" for name in PAGES if PAGES[name] == PAGES[study.name]]
    text = "\n".join(part.read_text(encoding="utf-8") for part in parts if part.is_file())
    write_whole(folder / PAGES[study.name], text.encode())


def extent_sentence(dataset: str, trials: list[Trial]) -> str:
    """What was run of a data set: model, training, size, samples, seeds; of what varies its range."""
    runs, first = [trial.federation for trial in trials], trials[0].federation
    widths = f" of widths {first.hidden}" if first.hidden else ""
    widths = f" / {first.width_divisor}" if first.width_divisor > 1 else widths
    steps = f"{_span(run.n_steps or 0 for run in runs)} steps of {first.batch_size or 'all samples'}"
    training = f"rate {_span(run.rate for run in runs)}, {steps}"
    sizes = {"N": (r.n_clients for r in runs), "K": (r.n_participants for r in runs), "T": (r.n_rounds for r in runs)}
    size = ", ".join(f"{letter} = {_span(numbers)}" for letter, numbers in sizes.items())
    limits = {"training": (r.train_limit for r in runs), "test": (r.test_limit for r in runs)}
    samples = ", ".join(_limit(what, set(found)) for what, found in limits.items())
    most = max(trial.n_permutations or 0 for trial in trials)
    at_most = f", at most {most} permutations" if most else ""
    return f"*{dataset}*: {first.model}{widths}, {training}, {size}, {samples}{at_most}, {_seeds_and_truth(runs)}."


def _span(numbers: Iterable[float]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]:g}" if len(found) == 1 else f"{found[0]:g} to {found[-1]:g}"


def _limit(what: str, limits: set[int | None]) -> str:
    """How many samples; where some trials have fewer than others, from the fewest."""
    fewest = min((limit for limit in limits if limit is not None), default=None)
    if fewest is None:
        return f"all {what} samples"
    return f"{fewest:,} {what} samples" + ("" if len(limits) == 1 else " or more")


def _seeds_and_truth(runs: Sequence[SimulationSettings]) -> str:
    seeds = sorted({run.seed for run in runs})
    span = f"seeds {seeds[0]}–{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    n_truth = len({run.seed for run in runs if run.with_truth})
    return span + (", no truth" if n_truth == 0 else f", truth on {n_truth}" if n_truth < len(seeds) else "")
