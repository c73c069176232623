"""The mean of several recorded runs of one federation: values whose intervals include training luck.

A federation that is trained again, with other batches and other participants, gives other values. One run cannot show
how far they move, so no interval of one run includes it. With R runs,

    value       mean of the runs' values
    covariance  S / R · (t / z)²  +  test set          S: covariance of the values over the runs

where t and z are the 95 % quantiles of Student's t with R − 1 degrees of freedom and of the normal distribution, so
that 90 % intervals are Student's. S contains the errors of the completion and of sampled coalitions, which differ from
run to run. The test set is the same in all runs, so its part is the mean of theirs, and more runs do not make it
smaller. Reports do not store the covariance of its errors between clients; comparisons of two clients assume the worst
case, opposite errors.

Values by group are means too. Reports do not store which part of their errors is the test set's, so the mean of the
runs' whole errors replaces it: errors of the completion count twice, and intervals by group are rather too wide.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from fedworth.arrays import Floats
from fedworth.completion.completion import in_every_run
from fedworth.errors import UsageError
from fedworth.records import differing
from fedworth.report.report import Report, Rounds
from fedworth.task.cells import N_BLOCKS
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.marginals import Marginals
from fedworth.valuation.uncertainty import HALF_WIDTH, TAIL, Source, uncertainty
from fedworth.valuation.valuation import Valuation


def mean_of_runs(reports: Sequence[Report], names: Sequence[str] = (), *, title: str | None = None) -> Report:
    """The report on the mean of several runs: `Report.mean`."""
    names = names or [report.title for report in reports]
    _refuse_others(reports, names)
    first, n_runs = reports[0], len(reports)
    methods = [
        valuation.method
        for valuation in first.valuations
        if all(report.valuation(valuation.method) is not None for report in reports)
    ]
    if not methods:
        raise UsageError(f"{', '.join(names)}: no method has values in all of them; value them by the same methods")
    assert first.provenance is not None
    heads = tuple(report.provenance.head for report in reports if report.provenance is not None)
    return Report(
        title=title or f"Mean of {n_runs} runs: {len(first)} clients",
        clients=first.clients,
        valuations=tuple(_mean([report.valued_by(method) for report in reports]) for method in methods),
        copies=first.copies,
        notes=(f"values are means of {n_runs} recorded runs, and intervals include how much the runs differ",),
        provenance=replace(first.provenance, other_heads=heads[1:], is_open=any(made.is_open for made in reports)),
    )


def _mean(valuations: Sequence[Valuation]) -> Valuation:
    """The mean of valuations of the same clients by one method."""
    clients, n_runs = valuations[0].clients, len(valuations)
    orders = [[run.clients.index(client) for client in clients] for run in valuations]
    values = np.stack([run.values[order] for run, order in zip(valuations, orders, strict=True)])  # (n_runs, n_clients)
    mean, factor = values.mean(axis=0), float(stdtrit(n_runs - 1, TAIL)) / HALF_WIDTH
    uncertainties = [run.uncertainty for run in valuations if run.uncertainty is not None]
    of_test_set = None
    if len(uncertainties) == n_runs and all(Source.TEST_SET in run.parts for run in uncertainties):
        parts = [run.parts[Source.TEST_SET][order] for run, order in zip(uncertainties, orders, strict=True)]
        deviations = np.mean(parts, axis=0)  # (n_clients,)
        of_test_set = -np.outer(deviations, deviations)
        np.fill_diagonal(of_test_set, deviations**2)
    found = uncertainty(
        mean,
        np.where(np.isnan(np.add.outer(mean, mean)), np.nan, 0.0),
        test_set=of_test_set,
        runs=np.atleast_2d(np.cov(values, rowvar=False)) / n_runs * factor**2,
        degrees=N_BLOCKS - 1,
        n_test_samples=uncertainties[0].n_test_samples if uncertainties else None,
        caveats=in_every_run([run.caveats for run in uncertainties]),
    )
    rests_on = [
        run.marginals.large[order] for run, order in zip(valuations, orders, strict=True) if run.marginals is not None
    ]
    marginals = Marginals(np.mean(rests_on, axis=0), ((),) * len(clients)) if len(rests_on) == n_runs else None
    groups = _mean_by_group([run.groups for run in valuations], orders)
    return Valuation(
        valuations[0].method,
        clients,
        mean,
        cautions=tuple(dict.fromkeys(caution for run in valuations for caution in run.cautions)),
        uncertainty=found,
        marginals=marginals,
        groups=groups,
    )


def _mean_by_group(runs: Sequence[GroupValues | None], orders: Sequence[Sequence[int]]) -> GroupValues | None:
    """The mean values by group, if all runs have them; the rows of each run are taken in its order."""
    known = [run for run in runs if run is not None]
    if len(known) < len(runs) or any(run.names != known[0].names for run in known):
        return None

    def stacked(name: str) -> Floats:
        return np.stack([getattr(run, name)[order] for run, order in zip(known, orders, strict=True)])

    values = stacked("values")  # (n_runs, n_clients, n_groups)
    of_runs = values.std(axis=0, ddof=1) / np.sqrt(len(known))
    half_of_runs = of_runs * float(stdtrit(len(known) - 1, TAIL))
    return replace(
        known[0],
        values=values.mean(axis=0),
        standard_deviations=np.hypot(of_runs, stacked("standard_deviations").mean(axis=0)),
        half_widths=np.hypot(half_of_runs, stacked("half_widths").mean(axis=0)),
    )


def _refuse_others(reports: Sequence[Report], names: Sequence[str]) -> None:
    """Refuse reports that are not of different runs of one federation, with the same settings."""
    if len(reports) < 2:
        raise UsageError(f"{len(reports)} run: expected two or more recorded runs of one federation")
    first, before = reports[0], list[tuple[str, Report]]()
    for report, name in zip(reports, names, strict=True):
        if apart := {*report.clients} ^ {*first.clients}:
            clients = ", ".join(repr(client) for client in sorted(apart)[:3])
            raise UsageError(f"{name}: has other clients than {names[0]} ({clients}); expected runs of one federation")
        provenance, expected = report.provenance, first.provenance
        if provenance is None or expected is None:
            raise UsageError(f"{name}: does not name its ledger and task, as a report on a ledger does; report on one")
        if provenance.task != expected.task:
            raise UsageError(f"{name}: has another task than {names[0]}; expected the same test set, loss and rule")
        if provenance.other_heads:
            raise UsageError(f"{name}: already the mean of several runs; name each run once")
        if others := differing(provenance.settings, expected.settings):
            raise UsageError(f"{name}: valued by other settings than {names[0]} ({others}); value both alike")
        for other, run in before:
            if run.provenance is not None and provenance.head == run.provenance.head:
                raise UsageError(f"{name}: the same recorded run as {other}; expected different runs")
            if _begin_alike(report.rounds, run.rounds):
                raise UsageError(
                    f"{name}: the same first rounds as {other}, so they are one recorded run at different times; "
                    "expected different runs"
                )
        before.append((name, report))


def _begin_alike(first: Rounds | None, second: Rounds | None) -> bool:
    """Whether the rounds of one begin with all rounds of the other: the same participants gained the same."""
    if first is None or second is None or first.gains is None or second.gains is None:
        return False
    n = min(len(first.numbers), len(second.numbers))
    gains = np.allclose(first.gains[:n], second.gains[:n], rtol=1e-9, atol=0)
    return gains and np.array_equal(first.participants[:n], second.participants[:n])
