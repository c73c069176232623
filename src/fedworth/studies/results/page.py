"""The results page: a section a study, with the paper's numbers beside ours, the verdict, the command, what it took.

Each study leaves its section in `sections/`; the page joins those that are there, so studies can be run one by one.
What the paper proves or says without a study stands at the end, from `docs/theory.md`.
"""

from dataclasses import dataclass
from pathlib import Path

from fedworth.storage import make_folder, read_json, write_json, write_whole
from fedworth.studies.results.outcome import Outcome, Verdict

INTRODUCTION = """# The paper's studies, reproduced

Every number below comes from `fedworth reproduce`, run on the data sets named; intervals are of 95 % over seeds
(Student's for means, Wilson's for shares), *p* is Wilcoxon's signed-rank test over the same seeds, one-sided. *truth*
needs every client's model of every round, which no server has; *FedSV, later rounds* leaves out the round that heard
everyone; *ComFedSV, counts* has the penalty of the solver that the paper used, *uniform* the penalty as printed, and
*chosen* that of the former with rank and strength by cross-validation; *heard round* is the Shapley value of the first
round alone, and *leave-one-out* what the participants lose without the client. Verdicts are on *counts*. All metrics
of a comparison share one trajectory.

How verdicts are made: a comparison of two methods holds if the paired test has *p* < .05, does not hold if the reverse
test has, and is open otherwise, as it is with fewer than five pairs. A number held against a bound is judged by its
whole interval: on the right side it holds, on the wrong side it does not, and across the bound, or without an interval
(fewer than three seeds), it is open.

Verdicts on CIFAR-10 and Fashion-MNIST are on the reduced models and samples stated under each study (VGG16 at an eighth
of its width, convolutional models of a few channels, 10,000 training samples), not on the paper's scale. *cifar10-full*
is VGG16 in its own width, on all training samples, for as many rounds, test samples and seeds as a processor carries.

Any row can be run again: `fedworth reproduce STUDY --dataset NAME --scale page --seeds 0-9`; all of them: `fedworth
reproduce all --scale page`, which goes on where a killed run stopped. Data sets are looked for in `FEDWORTH_DATA`.
`--scale page` keeps the paper's N, K and, unless said, T, and cuts seeds, samples and widths as stated under each
study; `--scale quick` (the default) has fewer seeds and rounds (24 minutes on the two cores that made this page);
`--scale paper` cuts nothing (50 runs, all samples, VGG16 in its real width) and wants a larger machine, as in `--scale
paper --device cuda`. *Processor time* is the sum over trials, which run side by side on as many processors as there
are; a trial that several studies use is run once, and counted in each.
"""

THEORY_TITLE = "What the paper proves, or says without a study"
THEORY: tuple[tuple[str, str, str], ...] = (
    (
        "Theorem 1: with a δ-complete completion ComFedSV is 4δ/N-Shapley-fair",
        "✘ as printed, with a counterexample from N = 5 on; ✔ with 4δ",
        "[7](theory.md#7-theorem-1-what-a-good-completion-guarantees), `fedworth theory fairness`",
    ),
    (
        "Proposition 1: a bound on the ε-rank of the utility matrix, which determines the rank of the completion",
        "✔ if kept between 1 and min(T, 2^N); ✘ as a rule for the rank: 2,800 to 12,083 where the SVD gives 2 to 5",
        "[8](theory.md#8-rank-of-the-utility-matrix), `fedworth theory rank-bound`, `fedworth theory rank`",
    ),
    (
        "Proposition 2: the same for strongly convex losses",
        "✘ as printed, its bound on the path length was violated in all of 6 runs; ✔ with a further factor L₁",
        "[8](theory.md#8-rank-of-the-utility-matrix), `fedworth theory rank-bound`",
    ),
    (
        "Observation 1: FedSV sets equal clients apart by sδ or more with probability at least P_s",
        "✘ as printed, no probability (P_1 = 3.24 for N = 10, m = 3, T = 10); ✔ with 1 − 2p for 1 − p",
        "[6](theory.md#6-observation-1-fedsv-is-unfair), `fedworth theory observation-1`",
    ),
    (
        "Assumption 1: everyone is heard once",
        "needed: without that round the rank correlation with the truth was .26 to .56, with it .90 to .96",
        "[4](theory.md#4-completion)",
    ),
    (
        "The Monte Carlo estimate is unbiased",
        "✔ for true utilities or given factors; ✘ with the reduced completion: 5 % of the norm at N = 6, M = 11, "
        "below 1 % at M = 50",
        "[3](theory.md#3-monte-carlo)",
    ),
    (
        "Synthetic(α, β): α and β say how much clients differ; α = β = 0 is IID",
        "✘ α has no effect at all, and with α = β = 0 every client still has its own source",
        "[9](theory.md#9-federation)",
    ),
    (
        "Algorithm 1 costs O(TNK log N), so FedSV is cheaper by K/N",
        "✘ a loose upper bound; counted, the reverse at T = 100 and large N",
        "[10](theory.md#10-cost), `fedworth reproduce time`",
    ),
)
"""What the paper says, whether it holds, and where `docs/theory.md` shows it."""

MARK = {"holds": "✔", "does not hold": "✘", "open": "?"}
COUNTED = {Verdict.HOLDS: ("holds", "hold"), Verdict.FAILS: ("does not", "do not"), Verdict.OPEN: ("open", "open")}


@dataclass(frozen=True, slots=True)
class Account:
    """What a study took: the command, its scale, its trials and their seconds."""

    command: str
    scale: str
    n_trials: int
    cpu_seconds: float
    extents: tuple[str, ...]

    def sentence(self) -> str:
        """What was run, for people."""
        minutes = f"{self.cpu_seconds / 60:.1f} min of processor time"
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


def lone_page(outcome: Outcome, remarks: tuple[str, ...], account: Account) -> str:
    """A page of one study's own: its table, its bars and what it took."""
    held = [f"- {MARK[c.verdict]} {c.what}: {c.why}" for c in outcome.claims]
    parts = [
        f"# {outcome.title}",
        *remarks,
        table(outcome.shown, outcome.lines, n_names=1),
        f"![{outcome.title}](figures/{outcome.study}.svg)",
        f"## Bars\n\n{sum(bool(c.holds) for c in outcome.claims)} of {len(outcome.claims)} are held.",
        "\n".join(held),
        f"## How it was run\n\n`{account.command}` — {account.sentence()} [Numbers](figures/{outcome.study}.csv).",
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
    counts = {v: sum(claim.verdict == v for claim in outcome.claims) for v in COUNTED}
    said = ", ".join(f"{n} {COUNTED[v][n > 1]}" for v, n in counts.items() if n)
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
    summary = table(("study", "verdict", "claims"), lines, n_names=3)
    theory = f"## {THEORY_TITLE}\n\n{table(('claim', 'verdict', 'where'), THEORY, n_names=3)}\n"
    page = folder / "results.md"
    parts = [INTRODUCTION, summary + "\n", *(found["text"] for found in kept.values()), theory]
    write_whole(page, "\n".join(parts).encode())
    return page
