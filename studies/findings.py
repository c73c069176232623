"""Findings: do they name clients that misbehave or have noisy data, and nobody else? Not one of the paper's studies.

The federation trains with the client that misbehaves and is recorded. Clean federations and those with noisy data are
reported on as `fedworth report` does. For the others the answers alone are checked, as `fedworth verify` does. Clean
federations have a truth, so that we know whether a client that is said to harm the model does.

One row a federation, with counts of clients. A client counts once, however many findings name it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

import fedworth
from studies import figures
from studies.bars import Claim
from studies.federations import federation, simulated
from studies.misconduct import COPIED, KINDS, Kind, Memory, kinds
from studies.setups import Extent, Setup
from studies.study import Case, Row, Section, Study
from studies.tables import NONE, number, table

MOST_FALSE, OFTEN, HALF = 0.05, 0.95, 5
PARTITIONS = {"iid": "IID", "two-class": "two classes each"}
WEIGHTINGS = {"fixed": "fixed weights", "uniform": "the weights of a mean"}
OF_VALUES = {kind.name for kind in KINDS.values() if kind.is_of_values}
CERTAIN = "certain: the records say so"
LEVELS = {
    **dict.fromkeys(("same model", "stale model", "no update", "many samples"), CERTAIN),
    **dict.fromkeys(("contested name", "shared node"), CERTAIN),
    "value by length": "none: two shares are compared",
}
"""How often chance may name an honest client; all other kinds count the chance for all clients of a federation."""
COUNTS = ["n_planted", "n_right", "n_other", "n_honest", "n_false", "n_harm_right"]


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """Every kind of federation, IID and with two classes a client."""
    made = []
    for partition in PARTITIONS:
        for kind in (kind for kind in kinds(extent.n_clients) if extent.special in ("", kind.name)):
            changes: dict[str, Any] = {"n_clients": extent.n_clients, "n_rounds": extent.n_rounds}
            changes |= {"n_participants": HALF, "partition": partition, "with_truth": kind.name == "clean"}
            made += [
                Case(name, setup.federation(seed, **{**changes, **kind.settings}), {"kind": kind.name})
                for seed in seeds
            ]
    return made


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """One row: who was named, rightly or not, and how certain the findings were."""
    kind = _kind(case.options["kind"], case.federation.n_clients)
    act = None if kind.act is None else Memory(kind.act)
    ledger, task = simulated(case.federation, scratch, data, misconduct=act)
    truth = None
    if kind.is_valued:
        report = fedworth.report_on(ledger, task)
        found, true = report.all_findings, report.valuation("truth")
        truth = None if true is None else true.values
    else:
        report = fedworth.report_on(ledger, task, methods=["fedsv"])
        found = report.findings
    said = [one.document() for one in found]
    row = {"kind": kind.name, **counted(kind, said, case.federation.n_clients, truth)}
    unseen = {one.name for one in report.not_looked_for}
    looked_for = [one.name for one in KINDS.values() if one.name not in unseen and kind.is_valued >= one.is_of_values]
    row["named"] = json.dumps(by_finding(kind, said, looked_for))
    if kind.name == COPIED:
        for weighting in WEIGHTINGS:
            pairs = federation(ledger, task, weighting=weighting).interactions()
            indexed = [(int(pair.first), int(pair.second), pair.index) for pair in pairs]
            row |= interaction(indexed, set(kind.planted), weighting)
    return [row]


def _kind(name: str, n_clients: int) -> Kind:
    return next(kind for kind in kinds(n_clients) if kind.name == name)


def counted(kind: Kind, said: Sequence[Row], n: int, truth: Any = None) -> Row:
    """Planted clients named as what they are, or as something else; honest clients named; harm that is real."""
    named = [(str(found["kind"]), {int(k) for k in found["clients"]}, float(found["confidence"])) for found in said]
    harm = {k: sure for name, clients, sure in named if name == "harm" for k in clients} if truth is not None else {}
    planted, left_out = set(kind.planted), {"harm", "negative value"} if kind.is_valued else OF_VALUES
    named = [found for found in named if found[0] not in left_out]
    right = [(clients, sure) for name, clients, sure in named if name in kind.found_as and planted & clients]
    found_right = planted & set[int]().union(*(clients for clients, _ in right))
    # a right finding also names the honest client that was copied: no false alarm
    copied_from = set[int]().union(*(clients for clients, _ in right)) - planted
    everyone = set[int]().union(*(clients for _, clients, _ in named)) - copied_from
    return {
        "n_planted": len(planted),
        "n_right": len(found_right),
        "n_other": len((everyone & planted) - found_right),
        "n_honest": n - len(planted),
        "n_false": len(everyone - planted),
        "sure": " ".join(f"{sure:.9g}" for _, sure in right),
        "harm_sure": " ".join(f"{sure:.9g}" for sure in harm.values()),
        "n_harm_right": sum(truth[k] < 0 for k in harm) if truth is not None else 0,
    }


def by_finding(kind: Kind, said: Sequence[Row], looked_for: Sequence[str]) -> dict[str, tuple[int, int]]:
    """How many planted and how many honest clients each kind of finding names, of those that were looked for.

    The honest client that a planted one copied is left out: a finding that names both is right.
    """
    made, planted = {}, set(kind.planted)
    for name in looked_for:
        groups = [{int(k) for k in found["clients"]} for found in said if found["kind"] == name]
        right = [clients for clients in groups if name in kind.found_as and clients & planted]
        everyone = set[int]().union(*groups)
        made[name] = len(everyone & planted), len(everyone - planted - set[int]().union(*right))
    return made


def interaction(pairs: Sequence[tuple[int, int, float]], planted: set[int], weighting: str) -> Row:
    """Whether the index of the planted pair is negative, the most negative, and the largest in absolute value."""
    (index,) = [index for first, second, index in pairs if {first, second} == planted]
    others = [index for first, second, index in pairs if {first, second} != planted]
    largest = abs(index) > max(map(abs, others))
    found = {"negative": index < 0, "lowest": index < min(others), "largest": largest}
    return {f"{weighting}_{name}": int(value) for name, value in found.items()}


def section(frame: pd.DataFrame) -> Section:
    """Recall, precision and false alarms of every kind, IID and not."""
    order = {kind.name: place for place, kind in enumerate(kinds(10))}
    frame = frame.sort_values(
        ["kind", "partition"], key=lambda c: c.map(order) if c.name == "kind" else c, kind="stable"
    )
    groups = [
        (str(kind), str(partition), rows)
        for (kind, partition), rows in frame.groupby(["kind", "partition"], sort=False)
    ]
    claims = [claim for kind, partition, rows in groups for claim in _claims(kind, PARTITIONS[partition], rows)]
    return Section(
        table(_line(kind, PARTITIONS[partition], rows) for kind, partition, rows in groups),
        claims=[*claims, *_interaction_claims(frame)],
        panels=[lambda axes: _draw(frame, axes)],
        appendix=table(_kind_line(kind, frame) for kind in KINDS.values()) if "named" in frame else None,
        n_names=2,
    )


def _kind_line(kind: Any, frame: pd.DataFrame) -> dict[str, str]:
    """What one kind of finding tests, at which level, whom it names of those that are planted for it, and whom else."""
    planted = {one.name: one for one in kinds(10)}
    found = frame.assign(of_kind=frame.named.map(lambda text: json.loads(text).get(kind.name)))
    found = found[found.of_kind.notna()]
    right, false = found.of_kind.str[0], found.of_kind.str[1]
    power = []
    for name, rows in found.groupby("kind", sort=False):
        n_right = int(right[rows.index].sum())
        if kind.name in planted[name].found_as and (n_right or len(planted[name].found_as) == 1):
            power.append(f"{n_right / rows.n_planted.sum():.0%} ({name})")
    alarms = f"{int(false.sum())} of {int(found.n_honest.sum()):,}" if len(found) else "not looked for here"
    if kind.name == "harm":  # about a value, not about conduct: compared with the truth of clean federations
        clean = frame[frame.kind == "clean"]
        n_said = len(numbers_in(clean.harm_sure))
        alarms = f"{n_said - int(clean.n_harm_right.sum())} of {n_said} named have a true value above zero"
    return {
        "finding": kind.name,
        "a client that …": kind.title,
        "judged by": kind.basis,
        "level": LEVELS.get(kind.name, "10 % a federation"),
        "planted clients named": "; ".join(power) or NONE,
        "honest clients named": alarms,
    }


def numbers_in(texts: pd.Series) -> list[float]:
    """All numbers in a column of texts."""
    return [float(number) for text in texts.dropna() for number in str(text).split()]


def _line(kind: str, data: str, frame: pd.DataFrame) -> dict[str, str]:
    n = frame[COUNTS].sum()
    named = n.n_right + n.n_other + n.n_false
    sure = float(np.median(numbers_in(frame.sure))) if numbers_in(frame.sure) else None
    return {
        "planted": kind,
        "data": data,
        "federations": str(len(frame)),
        "recall": number(n.n_right / n.n_planted if n.n_planted else None, ".1%"),
        "named as something else": number(n.n_other / n.n_planted if n.n_planted else None, ".1%"),
        "precision": number((n.n_right + n.n_other) / named if named else None, ".1%"),
        "honest clients named": number(n.n_false / n.n_honest, ".1%"),
        "median certainty": NONE if sure is None else "> 99.9 %" if sure > 0.999 else f"{100 * sure:.3g} %",
    }


def _claims(kind: str, data: str, frame: pd.DataFrame) -> list[Claim]:
    n = frame[COUNTS].sum()
    share = n.n_false / n.n_honest
    why = f"{n.n_false} of {n.n_honest} honest clients in {len(frame)} federations, {share:.1%}"
    made = [Claim(f"{kind}, {data}: at most 5 % false alarms", share <= MOST_FALSE, why)]
    if kind == "clean" and numbers_in(frame.harm_sure):
        made.append(harm_claim(f"{kind}, {data}", int(n.n_harm_right), numbers_in(frame.harm_sure)))
    return made


def harm_claim(where: str, n_right: int, sure: Sequence[float]) -> Claim:
    """Whether findings of harm are right as often as they say: so few right ones must not have a chance below 5 %."""
    chance = chance_of_so_few(n_right, sure)
    why = (
        f"{n_right} of {len(sure)} clients that are said to harm have a true value below zero, "
        f"{n_right / len(sure):.1%}; the findings are {np.mean(sure):.1%} certain on average. If each is right with "
        f"the probability it states, so few or fewer are right with probability {chance:.2g}"
    )
    return Claim(f"{where}: findings of harm are right as often as they say", chance >= MOST_FALSE, why)


def chance_of_so_few(n_right: int, sure: Sequence[float]) -> float:
    """The probability that at most so many of independent statements are right, each with its own probability."""
    of_count = np.ones(1)  # (n + 1,): the probability of each number of right ones among the first n
    for chance in sure:
        of_count = np.convolve(of_count, [1 - chance, chance])
    return float(of_count[: n_right + 1].sum())


def _interaction_claims(frame: pd.DataFrame) -> list[Claim]:
    copied = frame[frame.kind == COPIED]
    made = []
    for weighting, weights in WEIGHTINGS.items():
        for partition, data in PARTITIONS.items():
            rows = copied[copied.partition == partition]
            if not len(rows):
                continue
            n, where = len(rows), f"a copy and its source, {weights}, {data}"
            negative, lowest, largest = (
                int(rows[f"{weighting}_{name}"].sum()) for name in ("negative", "lowest", "largest")
            )
            why = f"{largest} of {n} federations; the most negative of all pairs in {lowest}"
            made.append(
                Claim(
                    f"{where}: their interaction is negative", negative >= OFTEN * n, f"{negative} of {n} federations"
                )
            )
            made.append(Claim(f"{where}: it is the largest in absolute value", largest >= OFTEN * n, why))
    return made


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    planted = frame[frame.kind != "clean"]
    names = list(planted.kind.unique())
    sums = planted.groupby(["partition", "kind"])[["n_right", "n_planted"]].sum()
    recall = (sums.n_right / sums.n_planted).unstack("kind").reindex(columns=names)
    figures.bars(axes, {label: recall.loc[key].to_list() for key, label in PARTITIONS.items() if key in recall.index})
    axes.set_xticks(range(len(names)), [str(place + 1) for place in range(len(names))])
    axes.set(title="recall", xlabel="planted, in the order of the table", ylabel="recall")


STUDY = Study(
    "findings",
    "How often findings are right",
    """Ten clients train for ten rounds; all take part in the first round, and five in each later one. The data are \
scanned digits (a logistic model, batches of 32) and MNIST (a network of 64 units, batches of 64). The client that \
misbehaves does so while the federation trains, so the model reacts to what it sends. We count every finding that a \
coordinator would read. For clean federations and noisy data these are the findings of `fedworth report`; for the \
others, those of `fedworth verify`, which only looks at the answers.

*Recall* is the share of planted clients that the right finding names (both clients of a copied pair, two clients \
with noisy data). *Named as something else* is the share that only another finding names. *Precision* is the share of \
named clients that are planted, and *honest clients named* are the false alarms. *Certainty* is the confidence that a \
right finding states. The table under *By kind* has a line for each kind of finding: what it says, what it is judged \
by, how often chance alone may name somebody (the level), which planted clients it names, and how many honest clients \
it names in all federations. Findings of harm are about a client's value, not its conduct; they are compared with the \
true value under *Bars*.

Some things cannot be found. If clients have two classes each, a copy that draws other batches looks like another \
client with the same two classes. Noisy labels do not lower the value there, because a wrong label shows the model a \
class that the client does not have. For the same reason a client with noisy labels harms fewer classes than the \
others do, which the values by class show (*many groups*). A client that really has more classes than the others \
looks the same, so this finding is only a note, and it says so. Free riders and copiers are honest in the first \
round. Noise of 3 standard deviations hardly lowers the value of MNIST clients. A client that sends three times its \
update is named for its length only if it gains by the length; the study `gaming` has federations where it does.

A client is said to harm the model if its value is below zero and if it makes coalitions of at least half of the \
others worse, too. The confidence is 90 % and counts the chance of an error for all clients. If only the value is \
below zero, the finding is called a negative value. The bar asks that findings are right as often as they say. No \
finding of harm or low value is made if the interval is known to be too narrow, for example because the client took \
part in few rounds.

*Interactions.* A copy and its source are redundant, so the interaction index of the pair is negative. With fixed \
weights (`fedworth run --weighting fixed`) it is nearly always the largest of all pairs in absolute value. With these \
weights, a coalition's model is the start plus its members' steps, weighted as in the full round, so a copy adds the \
step that its source has already added. With the weights of a mean, a copy only changes how much its source counts, \
and two clients with different classes interact far more, because the mean of their models knows both classes.

All thresholds were chosen on seeds from 1000 on. We looked at seeds 0 to 4 while an earlier rule for similar pairs \
was in use, so we report seeds from 10 on.""",
    section,
    scales={
        "page": {"digits-batches": Extent(5), "mnist-10": Extent(5)},
        "tiny": {"digits": Extent(1, 3)},
    },
    cases=cases,
    trial=trial,
    first_seed=10,
    page="findings.md",
)
