"""Measures: every way to value clients on the same ledgers, beside the truth. No study of the paper's."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from fedworth.pipeline.stages import REPORTED
from fedworth.studies.results.outcome import Cell, Outcome, Panel, Series
from fedworth.studies.results.statistics import jaccard
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial
from fedworth.valuation.labels import label

FLIPPED, NOISY_OF_TEN, HEARD_OF_TEN = 0.3, 2, 3
COLUMNS = (
    "setting", "measure", "n_seeds", "error", "correlation", "gap", "jaccard", "evaluations", "seconds", "refusal",
)  # fmt: skip
SHOWN = (
    "setting", "measure", "error", "rank correlation", "gap", "Jaccard", "evaluations", "s", "seeds",
)  # fmt: skip


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """A federation with its truth for every seed; the last client copies the first, or two of ten have noisy labels."""
    n = extent.n_clients
    changes: dict[str, Any] = {"n_clients": n, "n_rounds": extent.n_rounds, "with_truth": True}
    changes["n_participants"] = HEARD_OF_TEN * n // 10 if n == 10 else n // 10
    if extent.special:
        n_noisy = NOISY_OF_TEN * n // 10
        changes["flip_shares"] = (FLIPPED,) * n_noisy + (0.0,) * (n - n_noisy)
    else:
        changes["copies"] = ((n - 1, 0),)
    return [Trial(replace(setup.federation(seed), **changes), reading="measures") for seed in seeds]


def findings(rows: Rows) -> Outcome:
    """A line for each setting and measure; medians over seeds."""
    cells = [line for found in rows.values() for line in _of_setting(found)]
    numbered = [dict(zip(COLUMNS, line, strict=True)) for line in cells]
    return Outcome(
        study="measures",
        title="Measures side by side",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=tuple(line_of(row) for row in numbered),
        claims=(),
        panels=(_panel(numbered),),
        notes=tuple(dict.fromkeys(f"{row['measure']}: {row['refusal']}" for row in numbered if row["refusal"])),
    )


def setting_of(federation: dict[str, Any]) -> str:
    """The name of a setting."""
    kind = "noisy labels" if any(federation["flip_shares"]) else "two classes each"
    return f"{federation['dataset']}, {kind}, N = {federation['n_clients']}"


def _of_setting(rows: Sequence[Row]) -> list[tuple[Cell, ...]]:
    setting = setting_of(rows[0]["federation"])
    names = [found["measure"] for found in rows[0]["reading"]["measures"]]
    made = []
    for place, name in enumerate(names):
        found = [row["reading"]["measures"][place] for row in rows]
        noisy = [_noisy_found(row, one) for row, one in zip(rows, found, strict=True)]
        numbers = [_middle([one[key] for one in found]) for key in ("error", "rank_correlation", "copies_gap")]
        cost = [_middle([one[key] for one in found]) for key in ("evaluations", "cpu_seconds")]
        refusal = next((one["refusal"] for one in found if one["refusal"]), None)
        made.append((setting, label(REPORTED.get(name, name)), len(rows), *numbers, _middle(noisy), *cost, refusal))
    return made


def _noisy_found(row: Row, found: dict[str, Any]) -> float | None:
    noisy = np.flatnonzero(row["federation"]["flip_shares"]).tolist()
    if not noisy or found["values"] is None:
        return None
    lowest = np.argsort(np.array(found["values"], dtype=float), kind="stable")[: len(noisy)]
    return jaccard(set(noisy), set(lowest.tolist()))


def _middle(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return float(median(known)) if known else None


def line_of(row: dict[str, Cell]) -> tuple[str, ...]:
    """A row of the page's table."""
    texts = [_text(row[name], ".2f") for name in ("error", "correlation", "gap", "jaccard")]
    refused = bool(row["refusal"])
    cost = ["–" if refused else _text(row["evaluations"], ",.0f"), _text(row["seconds"], ".1f")]
    return (str(row["setting"]), str(row["measure"]), *texts, *cost, str(row["n_seeds"]))


def _text(number: Cell, form: str) -> str:
    return "–" if number in (None, "") else format(float(number or 0), form)


def _panel(numbered: Sequence[dict[str, Cell]]) -> Panel:
    settings = list(dict.fromkeys(str(row["setting"]) for row in numbered))
    measures = list(dict.fromkeys(str(row["measure"]) for row in numbered))

    def ranked(setting: str, measure: str) -> float:
        found = [row["correlation"] for row in numbered if (row["setting"], row["measure"]) == (setting, measure)]
        return float("nan") if not found or found[0] is None else float(found[0])

    series = tuple(
        Series(setting, list(range(len(measures))), [ranked(setting, measure) for measure in measures])
        for setting in settings
    )
    ticks = tuple(str(place + 1) for place in range(len(measures)))
    return Panel(
        "rank correlation", "measure, in the order of the table", "with the truth", series, "points", ticks=ticks
    )


ABOUT = (
    "Every measure of `fedworth compare LEDGER --methods all`, on the same ledgers and the same oracle, each from "
    "nothing, so that its cost is its own. Three of ten clients a round, ten of a hundred; ten rounds, everyone in the "
    "first. *Error* is the distance of centred values from centred true ones over the length of the latter; measures "
    "of another scale or of one round alone (cosine, the heard round, Banzhaf, Beta-Shapley) are better judged by "
    "their *rank correlation* with the truth. *Gap* is how far the last client, a copy of the first, is from it, over "
    "the spread of the measure's own values. *Jaccard* is that of the clients with 30 % flipped labels and the equally "
    "many least valued. Medians over seeds. Retraining is left out: it takes a training for each coalition. Of a "
    "hundred clients TMC, GTG, MR and OR are left out: they evaluate orders of all clients until the values have "
    "settled, which takes long.",
)

STUDY = Study(
    "measures", "No claim of the paper's: every measure beside the truth.", trials, findings, ABOUT, is_timed=True
)
