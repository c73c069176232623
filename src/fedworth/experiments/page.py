"""The results page: a section a study, with the paper's numbers beside ours, the verdict, the command, what it took.

Each study leaves its section in `sections/`; the page joins those that are there, so studies can be run one by one.
"""

from dataclasses import dataclass
from pathlib import Path

from fedworth.experiments.outcome import Outcome, Verdict
from fedworth.storage import make_folder, read_json, write_json, write_whole

INTRODUCTION = """# The paper's studies, reproduced

Every number below comes from `fedworth reproduce`, run on the data sets named; intervals are of 95 % over seeds
(Student's for means, Wilson's for shares), *p* is Wilcoxon's signed-rank test over the same seeds, one-sided. *truth*
needs every client's model of every round, which no server has; *FedSV, later rounds* leaves out the round that heard
everyone; *ComFedSV, counts* has the penalty of the solver that the paper used, *uniform* the penalty as printed, and
*chosen* that of the former with rank and strength by cross-validation; *heard round* is the Shapley value of the first
round alone, and *leave-one-out* what the participants lose without the client. Verdicts are on *counts*. All metrics
of a comparison share one trajectory.

Any row can be run again: `fedworth reproduce STUDY --dataset NAME --scale page --seeds 0-9`; all of them: `fedworth
reproduce all --scale page`, which goes on where a killed run stopped. Data sets are looked for in `FEDWORTH_DATA`.
`--scale page` keeps the paper's N, K and, unless said, T, and cuts seeds, samples and widths as stated under each
study; `--scale quick` (the default) has fewer seeds and rounds, for half an hour on two cores; `--scale paper` cuts
nothing (50 runs, all samples, VGG16 in its real width) and wants a larger machine, best with a GPU. *Trial time* is
the sum over trials, which run side by side on as many processors as there are.
"""

MARK = {"holds": "✔", "does not hold": "✘", "open": "?"}


@dataclass(frozen=True, slots=True)
class Account:
    """What a study took: the command, its scale, its trials and their seconds."""

    command: str
    scale: str
    n_trials: int
    wall_seconds: float
    cpu_seconds: float
    extents: tuple[str, ...]

    def sentence(self) -> str:
        """What was run, for people."""
        minutes = f"{self.wall_seconds / 60:.1f} min of trial time, {self.cpu_seconds / 60:.1f} min of processor time"
        return f"Scale `{self.scale}`: {self.n_trials} trials, {minutes}. {' '.join(self.extents)}"


def section(outcome: Outcome, claim: str, remarks: tuple[str, ...], account: Account) -> str:
    """One study as Markdown."""
    claims = [f"- {MARK[c.verdict]} {c.what}: {c.verdict} — {c.why}" for c in outcome.claims]
    parts = [
        f"## {outcome.title}",
        f"> {claim}",
        f"**Verdict: {outcome.verdict}.**" if claims else "",
        "\n".join(claims),
        *remarks,
        f"![{outcome.title}](figures/{outcome.study}.svg)",
        table(outcome.shown, outcome.lines),
        "\n".join(f"- {note}" for note in outcome.notes),
        f"`{account.command}` — {account.sentence()} [Numbers](figures/{outcome.study}.csv).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(headings: tuple[str, ...], lines: tuple[tuple[str, ...], ...], n_names: int = 2) -> str:
    """A Markdown table, its first columns names and the others numbers; what repeats the line above is left blank."""
    rule = "|" + "|".join([" --- "] * n_names + [" ---: "] * (len(headings) - n_names)) + "|"
    made = ["| " + " | ".join(headings) + " |", rule]
    above = ""
    for line in lines:
        first = "" if line[0] == above else line[0]
        above = line[0]
        made.append("| " + " | ".join((first, *line[1:])) + " |")
    return "\n".join(made)


def write_section(folder: Path, outcome: Outcome, text: str) -> None:
    """Keep a study's section, and its verdict for the summary."""
    make_folder(folder / "sections")
    counts = {v: sum(claim.verdict == v for claim in outcome.claims) for v in Verdict}
    words = {Verdict.HOLDS: "hold", Verdict.FAILS: "do not", Verdict.OPEN: "open"}
    said = ", ".join(f"{counts[v]} {word}" for v, word in words.items() if counts[v])
    kept = {
        "title": outcome.title,
        "verdict": str(outcome.verdict) if said else "–",
        "claims": said or "none of its own",
    }
    write_json(folder / "sections" / f"{outcome.study}.json", {**kept, "text": text})


def write_page(folder: Path, order: tuple[str, ...]) -> Path:
    """The page of all sections that are there, in this order, under a summary."""
    paths = {study: folder / "sections" / f"{study}.json" for study in order}
    kept = {study: read_json(path) for study, path in paths.items() if path.is_file()}
    lines = tuple((f"`{study}`", found["verdict"], found["claims"]) for study, found in kept.items())
    summary = table(("study", "verdict", "its claims, one by one"), lines, n_names=3)
    page = folder / "results.md"
    write_whole(page, "\n".join([INTRODUCTION, summary + "\n", *(found["text"] for found in kept.values())]).encode())
    return page
