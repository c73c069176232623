"""The pages, made from the CSV files and the manifest in FOLDER/figures and nothing else.

results.md            whether ComFedSV works, the regime map, the table of claims, and the paper's studies
results-appendix.md   all methods, sensitivity, accuracies, time, the theory, and what was run
fidelity.md           `fidelity` and `measures`
findings.md           `findings`
gaming.md             `gaming`
coverage.md           `coverage` and `luck`
retraining.md         `retraining`
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from studies import figures
from studies.bars import claims_table
from studies.calibration import choices
from studies.methods import PAPERS, RIVAL
from studies.study import Case, Section, Study, all_studies, study_named
from studies.tables import accuracy_of, markdown
from studies.trials import BOOKKEEPING, TEXTS
from studies.values import of_method

THEORY = Path(__file__).parent / "theory.md"
APPENDED = ("sensitivity", "models", "time")
"""Studies that compare no methods. Their figures and tables are in the appendix."""

Accounts = Mapping[str, Mapping[str, Any]]
Frames = Mapping[str, pd.DataFrame]


def keep(study: Study, scale: str, command: str, cases: Sequence[Case], rows: pd.DataFrame, folder: Path) -> None:
    """Write the rows of a study as a CSV file, and enter what was run in the manifest."""
    place = folder / "figures"
    place.mkdir(parents=True, exist_ok=True)
    rows.drop(columns=BOOKKEEPING).to_csv(place / f"{study.name}.csv", index=False, float_format="%.6g")
    trials = rows.drop_duplicates("trial")
    by_setup: dict[str, list[Any]] = {}
    for case in cases:
        by_setup.setdefault(case.setup, []).append(case.federation)
    account = {
        "command": command,
        "scale": scale,
        "commits": sorted(rows.commit.unique()),
        "n_trials": len(trials),
        "cpu_seconds": round(float(trials.cpu_seconds.sum()), 1),
        "extents": [extent_sentence(name, found) for name, found in by_setup.items()],
        "settings": {name: found[0].document() for name, found in by_setup.items()},
    }
    manifest = {**accounts_in(folder), study.name: account}
    (place / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def accounts_in(folder: Path) -> Accounts:
    """The manifest, by study."""
    path = folder / "figures" / "manifest.json"
    found: Accounts = json.loads(path.read_text()) if path.is_file() else {}
    return found


def frames_in(folder: Path) -> Frames:
    """The rows of all studies in the manifest."""
    return {name: pd.read_csv(folder / "figures" / f"{name}.csv", dtype=TEXTS) for name in accounts_in(folder)}


def extent_sentence(name: str, runs: Sequence[Any]) -> str:
    """What was run of a setup: model, training, sizes, samples, seeds, with ranges for what varies."""
    first = runs[0]
    seeds = sorted({run.seed for run in runs})
    n_truth = len({run.seed for run in runs if run.with_truth})
    truth = ", no truth" if not n_truth else f", truth on {n_truth}" if n_truth < len(seeds) else ""
    samples = [
        f"{limit:,} {what} samples" if limit else f"all {what} samples"
        for what, limit in (("training", first.train_limit), ("test", first.test_limit))
    ]
    parts = [
        first.model + (f" of widths {first.hidden}" if first.hidden else ""),
        f"rate {_range(run.rate for run in runs)}",
        f"{_range(run.n_steps or 0 for run in runs)} steps of {first.batch_size or 'all samples'}",
        f"N = {_range(run.n_clients for run in runs)}",
        f"K = {_range(run.n_participants for run in runs)}",
        f"T = {_range(run.n_rounds for run in runs)}",
        *samples,
        (f"seeds {seeds[0]}–{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}") + truth,
    ]
    return f"*{name}*: {', '.join(parts)}."


def _range(numbers: Iterable[float], form: str = "g") -> str:
    """The smallest and the largest number as text; one if they look the same."""
    found = sorted(numbers)
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (found[0], found[-1])))


def write(folder: Path) -> None:
    """Write all pages and figures of a folder."""
    found = sections(folder)
    for name, text in pages(folder, found).items():
        (folder / name).write_text(text)
        print(f"written: {folder / name}")
    for study, section in found.items():
        if section.panels:
            figures.save(section.panels, folder / "figures" / f"{study}.svg")
        if section.appendix_panels:
            figures.save(section.appendix_panels, folder / "figures" / f"{study}-more.svg")


def sections(folder: Path) -> dict[str, Section]:
    """The sections of all studies whose rows are in the folder."""
    frames = frames_in(folder)
    return {
        study.name: study.section(frames[study.rows_of.name]) for study in all_studies() if study.rows_of.name in frames
    }


def pages(folder: Path, found: Mapping[str, Section] | None = None) -> dict[str, str]:
    """The text of all pages, by name."""
    accounts, found = accounts_in(folder), sections(folder) if found is None else found
    made = {}
    if any(study_named(name).page == "results.md" for name in found):
        made["results.md"] = _results(found, accounts, frames_in(folder))
        made["results-appendix.md"] = _appendix(found, accounts)
    for name in ("fidelity", "findings", "gaming", "coverage", "retraining"):
        if name in found:
            made[f"{name}.md"] = _own_page(name, found, accounts)
    return made


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part)


def _results(found: Mapping[str, Section], accounts: Accounts, frames: Frames) -> str:
    papers = [study for study in all_studies() if study.page == "results.md"]
    shown = [study for study in papers if study.name in found and study.name not in APPENDED]
    claims = [
        claim
        for study in papers
        if study.name in found and study.name != "models"
        for claim in found[study.name].claims
    ]
    missing = [study.name for study in papers if study.name not in found]
    texts = {study.name: _section(study, found[study.name], accounts) for study in shown}
    has_cifar = _has_cifar({study.name: frames[study.name] for study in papers if study.name in frames})
    parts = [
        *_summary(accounts, frames),
        f"**Not run** at this commit, so not on this page: {', '.join(missing)}." if missing else "",
        texts.pop("regime", ""),
        f"## The paper's claims\n\n{JUDGED} {CIFAR if has_cifar else NO_CIFAR}",
        markdown(claims_table(claims), n_names=5) if claims else "",
        *texts.values(),
    ]
    return _joined(parts) + "\n"


def _has_cifar(frames: Frames) -> bool:
    return any("cifar10" in set(frame.data_set) for frame in frames.values() if "data_set" in frame)


def _section(study: Study, section: Section, accounts: Accounts) -> str:
    account = accounts[study.rows_of.name]
    command = account["command"].replace(f"studies {study.rows_of.name} ", f"studies {study.name} ", 1)
    made = f"`{command}`, {account['cpu_seconds'] / 60:.1f} min · [numbers](figures/{study.rows_of.name}.csv)."
    parts = [
        f"## {study.title}",
        f"> {study.claim}" if study.claim else "",
        f"{study.about} {made}",
        f"![{study.title}](figures/{study.name}.svg)",
        markdown(section.table, section.n_names),
    ]
    return _joined(parts)


def _ran(study: Study, accounts: Accounts, with_commits: bool = True) -> str:
    account = accounts[study.rows_of.name]
    minutes = f"{account['cpu_seconds'] / 60:.1f} min of processor time"
    text = f"`{account['command']}` — Scale `{account['scale']}`: {account['n_trials']} trials, {minutes}. "
    commits = f" Commit {', '.join(account['commits'])}."
    return text + " ".join(account["extents"]) + (commits if with_commits else "")


def _appendix(found: Mapping[str, Section], accounts: Accounts) -> str:
    parts = [APPENDIX]
    for study in all_studies():
        if study.page != "results.md" or study.name not in found:
            continue
        section, is_whole = found[study.name], study.name in APPENDED
        longer = section.appendix if section.appendix is not None else section.table if is_whole else None
        picture = study.name if is_whole else f"{study.name}-more" if section.appendix_panels else ""
        parts += [
            f"## {study.title}",
            study.about if is_whole else "",
            "\n".join(f"- {note}." for note in section.notes),
            f"![{study.title}](figures/{picture}.svg)" if picture else "",
            markdown(longer, n_names=2) if longer is not None else "",
            markdown(claims_table(section.claims), n_names=5) if study.name == "models" and section.claims else "",
            _ran(study, accounts),
        ]
    return _joined([*parts, THEORY.read_text().strip()]) + "\n"


def _own_page(name: str, found: Mapping[str, Section], accounts: Accounts) -> str:
    study, section = study_named(name), found[name]
    held = sum(bool(claim.holds) for claim in section.claims)
    parts = [
        f"# {study.title}",
        study.about,
        markdown(section.table, section.n_names),
        f"![{study.title}](figures/{name}.svg)",
        "## The answer\n\n" + "\n".join(f"- {note}" for note in section.notes) if section.notes else "",
        f"## By kind\n\n{markdown(section.appendix, n_names=6)}" if section.appendix is not None else "",
        f"## Bars\n\n{held} of {len(section.claims)} are met." if section.claims else "",
        "\n".join(f"- {claim.mark} {claim.what}: {claim.why}" for claim in section.claims),
        f"## How it was run\n\n{_ran(study, accounts)} [Numbers](figures/{name}.csv).",
    ]
    for other in (other for other in all_studies() if other.page == study.page and other.name != name):
        if other.name in found:
            more = found[other.name]
            parts += [
                f"## {other.title}",
                other.about,
                markdown(more.table, more.n_names),
                "\n".join(f"- {note}" for note in more.notes),
                f"{_ran(other, accounts)} [Numbers](figures/{other.name}.csv).",
            ]
    return _joined(parts) + "\n"


JUDGED = (
    "Each claim is judged separately at both settings. A comparison of two methods needs five independent seeds and a "
    "test at 5 % (Wilcoxon's paired test, or Kolmogorov and Smirnov's for distributions). A number is compared with a "
    "bound by its whole 95 % interval. Everything else is *open* (?), also a claim about models near chance or about "
    "saturated results. *Depends on* says whether the method or the setting decides. The verdicts are about *ComFedSV* "
    "as the paper solved it (penalty by counts, rank 5). Accuracies after a hundred rounds and costs are in the "
    "[appendix](results-appendix.md)."
)
CIFAR = (
    "On CIFAR-10 the model is VGG16 with widths divided by 8, and with GroupNorm instead of BatchNorm, as federations "
    "use it, because averaged statistics of BatchNorm fit the average of all clients, not that of a coalition."
)
NO_CIFAR = "CIFAR-10 has not been run for this page."
APPENDIX = (
    "# Results: the appendix\n\nThis page has what [the results](results.md) leave out: all methods, how the settings "
    "were chosen, and what each study ran. *truth* needs every client's model of every round, which no server has. "
    "*FedSV, later rounds* leaves out the round with all clients. ComFedSV has the penalty of the solver that the "
    "paper used (*counts*); *uniform* is the printed one. The rank is 5 unless it is given. Intervals are 95 % "
    "intervals over seeds (Student's for means, Wilson's for shares)."
)
SMALL, LARGE = 0.03, 1.0  # steps × rate: small up to the first, large from the second on
NAMED = {PAPERS: "ComFedSV", RIVAL: "FedSV", "all-clients-round": "the all-clients round alone"}
MODELS = "comfedsv-models"


def _summary(accounts: Accounts, frames: Frames) -> list[str]:
    """The first half page: does it work, and when? The numbers are those of the regime map."""
    parts = [
        "# Does ComFedSV work, and when?",
        "On this page *ComFedSV* is the paper's method, which completes the utility matrix by factors. *ComFedSV by "
        "models* is the default of fedworth.",
    ]
    regime = frames.get("regime")
    if regime is not None:
        short = regime[(regime.n_rounds <= 10) & (regime.model == "mlp")]
        path = short.n_steps * short.rate
        parts += _regime_summary(short[path <= SMALL], short[path >= LARGE])
    return [*parts, _settings_summary(accounts, frames)]


def _regime_summary(small: pd.DataFrame, large: pd.DataFrame) -> list[str]:
    """Small and large steps, with two classes a client and IID."""
    if not all(set(frame.partition) >= {"iid", "two-class"} for frame in (small, large)):
        return []
    two, alike = ([frame[(frame.partition == "iid") == is_iid] for frame in (small, large)] for is_iid in (False, True))

    def span(frame: pd.DataFrame, key: str, measure: str) -> str:
        return _range(of_method(frame, key).groupby(["n_steps", "rate"])[measure].mean(), ".2f")

    def accuracies(frame: pd.DataFrame) -> str:
        return _range((accuracy_of(cell) for _, cell in frame.groupby(["n_steps", "rate"])), ".2f")

    def compared(frame: pd.DataFrame) -> str:
        return ", ".join(
            f"{name} {span(frame, key, 'value_error')} (ρ {span(frame, key, 'rank_correlation')})"
            for key, name in NAMED.items()
        )

    by_models = [span(frame, MODELS, "value_error") for frame in (*two, *alike)]
    return [
        f"**It works if steps are small.** On two-class MNIST with steps × rate of at most {SMALL:g} a round, the "
        "errors of the values relative to their spread are (in brackets the rank correlation with the truth): "
        f"{compared(two[0])}. There the utility matrix is nearly of rank one, as the theory says. But such small "
        f"steps hardly train the model: after ten rounds its accuracy is {accuracies(two[0])}. And the all-clients "
        "round, which needs one round and no completion, does about as well.",
        f"**Do not rely on it if steps train the model.** With steps × rate of {LARGE:g} or more (accuracy "
        f"{accuracies(two[1])}): {compared(two[1])}. An error of 1 is as good as saying that all clients are worth the "
        "same. Coalitions larger than the number of participants are observed in the first round only. So most of the "
        "completed matrix is that round, rescaled, which is only right if later rounds are similar.",
        "**Predicting models instead of utilities** (*ComFedSV by models*, the default of fedworth, not in the paper) "
        f"has errors of {by_models[0]} at small steps and {by_models[1]} at large ones. **On IID data** clients hardly "
        f"differ, so errors are large relative to that small spread. Small steps: {compared(alike[0])}, ComFedSV by "
        f"models {by_models[2]}. Large steps: {compared(alike[1])}, ComFedSV by models {by_models[3]}.",
    ]


def _settings_summary(accounts: Accounts, frames: Frames) -> str:
    papers = {name: account for name, account in accounts.items() if study_named(name).page == "results.md"}
    commits = sorted({commit for account in papers.values() for commit in account["commits"]})
    spent = sum(account["cpu_seconds"] for account in papers.values()) / 60
    chosen = [choice.named for choice in choices(frames["sensitivity"])] if "sensitivity" in frames else []
    return (
        "**Two settings.** The paper gives no learning rate. Its text describes one deterministic local step, “for "
        "simplicity”, and its algorithm several stochastic ones. *Paper-like* is one full-batch step at the rate "
        "where FedSV comes nearest to the paper's number for FedSV. *Practical* is several steps on batches that "
        "train fast. Rates and the strength of noise were chosen by FedSV only, on seeds from 1000 on, which are not "
        "reported elsewhere (`python -m studies sensitivity`, "
        "[appendix](results-appendix.md#sensitivity-how-the-settings-were-chosen))"
        f"{': ' if chosen else ''}{'; '.join(chosen)}. Everything below is on seeds from 0 on. "
        "Image data sets are limited to 10,000 training samples (5,000 for a hundred rounds) and 200 to 500 test "
        "samples, and models to 64 hidden units or a few "
        f"channels; N, K and T are the paper's. All rows come from commit {', '.join(commits) or 'unknown'} and took "
        f"{spent:.0f} min on one processor; [the manifest](figures/manifest.json) has every setting. To run it again: "
        "`make studies`, or any command below."
    )
