"""Fairness (the paper's Section VII-B): do clients 0 and 9, who have the same data, receive the same value?

d = |s_0 − s_9| / max(|s_0|, |s_9|) over seeds, non-IID, N = 10, K = 3, T = 10. The paper shows its distribution for
FedSV and ComFedSV and says that ComFedSV's lies to the left everywhere. d explodes where values are near zero, so the
gap |s_0 − s_9| / mean |truth| stands beside it; and a value may be fair and wrong (the heard round alone has d = 0 by
construction), so the rank correlation with the truth does too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.studies.results.comparing import (
    accuracy_of,
    at_setting,
    bound_claim,
    by_method,
    label,
    left_claim,
    listed,
    place_of,
    text_of,
)
from fedworth.studies.results.outcome import Claim, Outcome, Panel, Series
from fedworth.studies.results.records import Record, csv_of, grouped, numbers, shortened, value_records
from fedworth.studies.results.statistics import chance_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import FOUR, PAPERS
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Trial

COPY, SOURCE = 9, 0
COPIES = ((COPY, SOURCE),)
MEASURES = ("d", "gap", "rank_correlation", "value_error")
ABOUT, MOST = 0.1, 0.9
"""The paper's d of ComFedSV stay below about the first; so must at least this share of ours."""

SHOWN = ("data, steps × rate", "accuracy", *(label(key) for key in FOUR), "seeds")
ALL_SHOWN = (
    "data, steps × rate",
    "method",
    "median d",
    "P(d > .5)",
    "largest d",
    "gap",
    "ρ with truth",
    "error",
    "seeds",
)


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """Clients 0 to 8 with data of their own, client 9 with that of client 0."""
    return [
        Trial(
            replace(
                setup.federation(seed),
                copies=COPIES,
                n_rounds=extent.n_rounds,
                with_truth=extent.has_truth(position),
            ),
            without_models=setup.is_convolutional,
        )
        for position, seed in enumerate(seeds)
    ]


def records_of(rows: Rows) -> list[Record]:
    """d, gap and agreement with the truth of every method."""
    return value_records(rows, MEASURES)


def shown(records: Sequence[Record]) -> Outcome:
    """The distribution of d at every setting."""
    places = grouped(records, "setup")
    columns, rows = csv_of(records)
    return Outcome(
        study="fairness",
        title="Fairness: clients with the same data",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=tuple(_line(found) for found in places.values()),
        claims=tuple(at_setting(claim, found) for found in places.values() for claim in _claims(found)),
        panels=tuple(_panel(found) for found in places.values()),
        all_shown=ALL_SHOWN,
        all_lines=tuple(line for found in places.values() for line in _all(found)),
    )


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    of, texts = grouped(records, "method"), []
    for key in FOUR:
        mine = of.get((key,), [])
        d, gap, rho = (numbers(mine, name) for name in ("d", "gap", "rank_correlation"))
        texts.append(f"{np.median(d):.2f}, {text_of(gap)}, {text_of(rho)}" if d else "–")
    n_seeds = len({record["seed"] for record in records})
    return (place_of(records[0]), f"{accuracy_of(records):.2f}", *texts, str(n_seeds))


def _all(records: Sequence[Record]) -> list[tuple[str, ...]]:
    made = []
    for (key,), mine in grouped(records, "method").items():
        d, share = numbers(mine, "d"), chance_of([x > 0.5 for x in numbers(mine, "d")])
        means = [text_of(numbers(mine, name)) for name in ("gap", "rank_correlation", "value_error")]
        seen = (f"{np.median(d):.2f}", share.text(), f"{max(d):.2f}", *means, str(len(d)))
        made.append((place_of(records[0]), label(str(key)), *seen))
    return made


def _claims(records: Sequence[Record]) -> list[Claim]:
    data, numbers_of = place_of(records[0]).partition(",")[0], by_method(records, "d")
    ours = listed(numbers_of.get(PAPERS, {}))
    below = chance_of([d <= ABOUT for d in ours])
    median = f"median {np.median(ours):.2f}" if ours else "no values"
    return [
        left_claim(f"{data}: d lies left of FedSV's at every t", numbers_of),
        bound_claim(f"{data}: d stays below about .1", below, f"{below.value:.0%} of runs do, {median}", least=MOST),
    ]


def _panel(records: Sequence[Record]) -> Panel:
    series = []
    for key, found in by_method(records, "d").items():
        if key in FOUR:
            d = np.sort(listed(found))
            steps = [0.0, *(np.arange(1, len(d) + 1) / len(d)).tolist(), 1.0]
            series.append(Series(key, [0.0, *d.tolist(), 2.0], steps))
    return Panel(place_of(records[0]), "t", "share of runs with d ≤ t", tuple(series), kind="steps", limits=(0, 1.02))


STUDY = Study(
    "fairness",
    "On all data sets P(d₀₉ ≤ t) is at least as large for ComFedSV as for FedSV, for every t.",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "A cell has the median *d*, the mean gap $|s_0-s_9|$ / mean |truth|, and the rank correlation with the truth "
        "(–: no truth was measured). The heard round has *d* = 0 by construction, and equal clients get equal "
        "predicted models: fair is not right, so the correlation stands beside it.",
    ),
    shown=shown,
)
