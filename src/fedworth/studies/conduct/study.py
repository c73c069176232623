"""Findings: whether they name clients that misbehave or have noisy data, and nobody else. No study of the paper's.

Thresholds were chosen on seeds from 1000 on; reported are seeds from 0 on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedworth.findings import HARM, OF_VALUES
from fedworth.studies.conduct.misconduct import kinds
from fedworth.studies.conduct.pairs import interaction_claims
from fedworth.studies.conduct.reading import PREFIX
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

MOST_FALSE = 0.05
HALF = 5
"""Participants of ten a round."""

COLUMNS = (
    "partition", "kind", "n_federations", "n_planted", "recall", "named_otherwise", "precision", "false_alarms",
    "median_sure", "n_harm", "harm_right", "harm_sure",
)  # fmt: skip
SHOWN = (
    "planted", "data", "federations", "recall", "named as something else", "precision", "honest clients named",
    "median sureness",
)  # fmt: skip
PARTITIONS = {"iid": "IID", "two-class": "two classes each"}


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """Every kind of federation, on data shared out at random and by two classes each."""
    made = []
    for partition in PARTITIONS:
        for kind in (kind for kind in kinds(extent.n_clients) if extent.special in ("", kind.name)):
            changes: dict[str, Any] = {
                "n_clients": extent.n_clients,
                "n_rounds": extent.n_rounds,
                "n_participants": HALF,
            }
            changes |= {"with_truth": kind.name == "clean", "partition": partition, **kind.settings}
            runs = [replace(setup.federation(seed), **changes) for seed in seeds]
            made += [Trial(run, reading=f"{PREFIX}{kind.name}") for run in runs]
    return made


@dataclass(frozen=True)
class Counted:
    """What was found in the federations of one kind."""

    n_federations: int
    n_planted: int
    n_right: int  # planted clients named as what they are
    n_other: int  # planted clients named as something else alone
    n_honest: int
    n_false: int  # honest clients named
    sure: tuple[float, ...]
    harm_sure: tuple[float, ...]  # of each client of a clean federation that is said to harm: how sure that is
    n_harm_right: int

    @property
    def n_harm(self) -> int:
        return len(self.harm_sure)

    @property
    def precision(self) -> float | None:
        named = self.n_right + self.n_other + self.n_false
        return (self.n_right + self.n_other) / named if named else None


def counted(rows: Sequence[Row]) -> Counted:
    """Clients, counted once each however many findings name them; who is said to harm is counted apart."""
    numbers, sure, harm_sure = np.zeros(6, dtype=int), list[float](), list[float]()
    for row in rows:
        reading, n = row["reading"], row["federation"]["n_clients"]
        kind = next(kind for kind in kinds(n) if kind.name == reading["kind"])
        wanted, planted = kind.found_as, set(reading["planted"])
        apart = {HARM.name} if kind.is_valued else {found.name for found in OF_VALUES}
        said = [f for f in reading["findings"] if f["kind"] not in apart]
        right = {k for f in said if f["kind"] in wanted for k in f["clients"]} & planted
        named = {k for f in said for k in f["clients"]} - _copied_from(said, wanted, planted)
        sure += [f["sure"] for f in said if f["kind"] in wanted and planted & set(f["clients"])]
        harm = {k: f["sure"] for f in reading["findings"] if f["kind"] == HARM.name for k in f["clients"]}
        truth = reading["truth"] or []
        harmed = {k for k in harm if truth[k] < 0} if truth else set()
        harm_sure += harm.values() if truth else ()
        groups = (planted, right, (named & planted) - right, set(range(n)) - planted, named - planted, harmed)
        numbers += [len(group) for group in groups]
    n_planted, n_right, n_other, n_honest, n_false, n_harmed = numbers.tolist()
    return Counted(len(rows), n_planted, n_right, n_other, n_honest, n_false, tuple(sure), tuple(harm_sure), n_harmed)


def _copied_from(said: Sequence[dict[str, Any]], wanted: frozenset[str], planted: set[int]) -> set[int]:
    """Honest clients that a right finding names beside the planted one, as those whose answers were copied."""
    right = [set(f["clients"]) for f in said if f["kind"] in wanted and planted & set(f["clients"])]
    return set[int]().union(*right) - planted


def findings(rows: Rows) -> Outcome:
    """Recall, precision and false alarms of every kind, on both partitions."""
    everything = [row for found in rows.values() for row in found]
    keys = dict.fromkeys((row["reading"]["kind"], row["federation"]["partition"]) for row in everything)
    by_key = {
        key: counted([r for r in everything if (r["reading"]["kind"], r["federation"]["partition"]) == key])
        for key in sorted(keys, key=lambda key: (_place(key[0]), key[1]))
    }
    return Outcome(
        study="findings",
        title="How often findings are right",
        columns=COLUMNS,
        rows=tuple(_cells(*key, found) for key, found in by_key.items()),
        shown=SHOWN,
        lines=tuple(line_of(dict(zip(COLUMNS, _cells(*key, found), strict=True))) for key, found in by_key.items()),
        claims=(*_claims(by_key), *interaction_claims(everything, PARTITIONS)),
        panels=(_panel(by_key),),
    )


def _place(name: str) -> int:
    return [kind.name for kind in kinds(10)].index(name)


def _cells(name: str, partition: str, found: Counted) -> tuple[Cell, ...]:
    planted = found.n_planted
    return (
        PARTITIONS[partition], name, found.n_federations, planted,
        found.n_right / planted if planted else None, found.n_other / planted if planted else None, found.precision,
        found.n_false / found.n_honest, float(np.median(found.sure)) if found.sure else None, found.n_harm,
        found.n_harm_right, float(np.mean(found.harm_sure)) if found.harm_sure else None,
    )  # fmt: skip


def line_of(row: dict[str, Cell]) -> tuple[str, ...]:
    """A row of the page's table."""
    shares = [_percent(row[name]) for name in ("recall", "named_otherwise", "precision", "false_alarms")]
    sure = row["median_sure"]
    shown = "–" if sure in (None, "") else "> 99.9 %" if float(sure or 0) > 0.999 else f"{100 * float(sure or 0):.3g} %"
    return (str(row["kind"]), str(row["partition"]), str(row["n_federations"]), *shares, shown)


def _percent(share: Cell) -> str:
    return "–" if share in (None, "") else f"{float(share or 0):.1%}"


def _claims(by_key: dict[tuple[str, str], Counted]) -> list[Claim]:
    made = []
    for (name, partition), found in by_key.items():
        share = found.n_false / found.n_honest
        why = f"{found.n_false} of {found.n_honest} honest clients in {found.n_federations} federations, {share:.1%}"
        made.append(Claim(f"{name}, {PARTITIONS[partition]}: false alarms ≤ 5 %", share <= MOST_FALSE, why))
        if name == "clean" and found.n_harm:
            made.append(harm_claim(f"{name}, {PARTITIONS[partition]}", found))
    return made


def harm_claim(where: str, found: Counted) -> Claim:
    """Whether those said to harm do as often as the findings say themselves: not so rarely that, were each right with
    the chance that it states, so few would be right in less than 5 % of cases."""
    n_right, stated = found.n_harm_right, float(np.mean(found.harm_sure))
    chance = chance_of_so_few(n_right, found.harm_sure)
    why = (
        f"{n_right} of {found.n_harm} that are said to harm have a true value below zero, "
        f"{n_right / found.n_harm:.1%}; the findings are {stated:.1%} sure on average, and if each is right with the "
        f"chance that it states, so few or fewer are right with probability {chance:.2g}"
    )
    return Claim(f"{where}: who is said to harm does, as surely as is said", chance >= MOST_FALSE, why)


def chance_of_so_few(n_right: int, sure: Sequence[float]) -> float:
    """The chance that at most so many of independent statements are right, each with its own probability."""
    of_count = np.ones(1)  # (n + 1,): the chance of each number of right ones among the first n
    for chance in sure:
        of_count = np.convolve(of_count, [1 - chance, chance])
    return float(of_count[: n_right + 1].sum())


def _panel(by_key: dict[tuple[str, str], Counted]) -> Panel:
    names = list(dict.fromkeys(name for name, _ in by_key if name != "clean"))

    def recall(name: str, partition: str) -> float:
        found = by_key.get((name, partition))
        return found.n_right / found.n_planted if found is not None else float("nan")

    series = tuple(
        Series(label, list(range(len(names))), [recall(name, partition) for name in names])
        for partition, label in PARTITIONS.items()
    )
    ticks = tuple(str(place + 1) for place in range(len(names)))
    return Panel("recall", "what is planted, in the order of the table", "recall", series, kind="bars", ticks=ticks)


ABOUT = (
    "Ten clients, half of them a round and everyone in the first, ten rounds, on scanned digits (a logistic model, "
    "batches of 32) and MNIST (a network of 64 units, batches of 64). The client that misbehaves does so while the "
    "federation trains, so the model follows what it sends. Every sentence that a coordinator would read is counted: "
    "of clean federations and of noisy data those of `fedworth report`, of the others those of `fedworth verify`, "
    "which looks at the answers alone.",
    "*Recall* is the share of planted clients that are named as what they are (of a copy both are planted, of noisy "
    "data two clients); *named as something else* the share that only another finding names. *Precision* is the share "
    "of named clients that are planted, *honest clients named* the false alarms. *Sureness* is how sure a right "
    "finding says it is. That a client harms is a statement on its value, not on its conduct, and is held "
    "against the true value under *Bars*.",
    "What cannot be told: with two classes each, a copy that draws other batches looks like another client with the "
    "same two classes, so mostly nothing is said; and there noisy labels are not worth less, since a wrong label "
    "shows the model a class that the client does not have. Free riders are honest in the first round. The noise of 3 "
    "standard deviations hardly lowers what MNIST clients are worth.",
    "A client is said to harm if its whole 90 % interval lies below zero. Such a finding is at least 95 % sure, so "
    "about one in twenty of the least sure is wrong. The bar asks that findings are right as often as they say. An "
    "earlier bar asked for 95 %, which 17 of 18 just miss. Nobody is said to harm, or to be worth little, whose "
    "interval is known to be too narrow, as that of a client heard in one round only is.",
    "*Interactions.* A copy and its source are redundant: the index of the pair is negative. It is nearly always "
    "the largest in size of all pairs with fixed weights (`fedworth run --weighting fixed`), and with them alone. "
    "There a coalition's model is the start plus its members' steps, each weighed as in the whole, so a copy adds "
    "the step that its source has added already. With the weights of a mean a copy only changes what its source "
    "counts for; and two clients with different classes complement each other by far more, since the mean of their "
    "models knows both.",
    "Everything that is fixed (thresholds, degrees of freedom) was chosen on seeds from 1000 on. Seeds 0 to 4 then "
    "showed that small rounds name pairs by chance; since then a round needs eight answers for that, and seeds from "
    "10 on are reported.",
)

STUDY = Study(
    "findings", "No claim of the paper's: whether findings are right.", trials, findings, ABOUT, first_seed=10
)
