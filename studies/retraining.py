"""Retraining: do values predict what clients are worth if models are trained from scratch, and what leaving costs?

A value adds up what a client does round by round, on models that all others have trained. What people ask is another
question: what would the model be without it? For every federation all 2^N coalitions are trained from scratch, several
times with other batches, with all members in every round:

    retraining value   Shapley value of v(S) = loss(first model) − loss(final model of S)
    cost of leaving    v(everyone) − v(everyone but i)

Both are means over the trainings, measured on the whole test set. The methods get one recorded federation and at most
500 test samples. One row a federation, participation and method:

    value, leaving        Pearson's correlation of the values with the two targets
    value_rank, leaving_rank   Spearman's
    value_reliable, leaving_reliable   the part of the target's variance between clients that is not training luck
    dropped_best          whether the client of lowest value is the one that costs least to lose
    regret                what losing it costs more than losing the best one, over the range of all clients' costs

Beside the methods of `fedworth compare` there are three remedies, which need nothing but the ledger:

    late       ComFedSV by models, round t of T counted t / T
    at-end     ComFedSV by models, each coalition's model of a round moved by all later steps of the server, so that its
               loss is measured at the end of training
    last-round the last recorded round alone
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

import fedworth
from fedworth import Answer, FastOracle, FedworthError, Ledger, SimulationSettings, Task
from studies import figures
from studies.bars import LEVEL, SHARES, mean_of, p_less, rank_correlation, share_of
from studies.federations import Flags, Floats, all_coalitions, federation, simulated
from studies.methods import METHODS as NAMED
from studies.setups import Extent, Setup
from studies.study import Case, Row, Section, Study
from studies.tables import NONE, number, table

N_CLIENTS, N_SOME, N_TRAININGS, N_SAMPLES = 6, 3, 4, 500
OURS = "comfedsv-models"
METHODS = ("fedsv", "comfedsv", OURS, "leave-one-out", "all-clients-round", "tmc", "gtg", "or", "influence", "cosine")
REMEDIES = {
    "late": "ComFedSV by models, late rounds count more",
    "at-end": "ComFedSV by models, at the end of training",
    "last-round": "ComFedSV by models, last round alone",
}
LABELS = {**REMEDIES, "tmc": "TMC", "gtg": "GTG", "or": "OR"}
LEAST_RELIABLE = 0.2
"""Where less of a target's variance is more than training luck, no correlation is corrected for it."""

KINDS: Mapping[str, dict[str, Any]] = {
    "IID": {"partition": "iid"},
    "label skew": {"partition": "dirichlet", "alpha": 0.3},
    "unequal sizes": {"partition": "quantity", "alpha": 0.5, "aggregation": "samples"},
    "noisy labels": {"partition": "iid", "flip_shares": (0.3, 0.3, 0.0, 0.0, 0.0, 0.0)},
    "a copy": {"partition": "two-class", "copies": ((5, 0),)},
    "a free rider": {"partition": "iid"},
}
Model = dict[str, torch.Tensor]


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """One federation a kind and seed."""
    same = {"n_clients": N_CLIENTS, "n_participants": N_CLIENTS, "n_rounds": extent.n_rounds, "with_truth": False}
    options = {"trainings": N_TRAININGS if extent.n_rounds > 2 else 2}
    return [
        Case(name, setup.federation(seed, **{**same, **changes}), {"kind": kind, **options})
        for kind, changes in KINDS.items()
        for seed in seeds
    ]


def rides_free(_: int, start: Model, answers: dict[str, Answer]) -> dict[str, Answer]:
    """Client 0 sends back the model that it got."""
    if "0" not in answers:
        return answers
    return {**answers, "0": Answer({name: tensor.clone() for name, tensor in start.items()}, answers["0"].n_samples)}


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """One row for each participation and method."""
    kind = str(case.options["kind"])
    misconduct = rides_free if kind == "a free rider" else None
    games = []
    for run in range(int(case.options["trainings"])):
        settings = replace(case.federation, training_seed=run + 1)
        ledger, task = simulated(settings, scratch / f"again-{run}", data, misconduct=misconduct)
        games.append(retrained_utilities(ledger, task, data, misconduct))
    targets = targets_of(np.stack(games, axis=1))
    rows: list[Row] = []
    for n_participants in (N_CLIENTS, N_SOME):
        settings = replace(case.federation, n_participants=n_participants)
        ledger, task = simulated(settings, scratch / f"with-{n_participants}", data, misconduct=misconduct)
        task = replace(task, inputs=task.inputs[:N_SAMPLES], labels=task.labels[:N_SAMPLES])
        same = {"kind": kind, "take_part": n_participants}
        rows += [{**same, "method": key, **compared(values, targets)} for key, values in valued(ledger, task, settings)]
    return rows


def retrained_utilities(ledger: Ledger, task: Task, data: Path | None, misconduct: Any) -> Floats:
    """(2^n,): what each coalition reaches when it is trained from scratch."""
    first = loss_of(task, ledger.open_round(0).global_model)
    rows = all_coalitions(len(ledger.clients))
    trained = fedworth.retrained_models(ledger, rows[1:], data_folder=data, misconduct=misconduct)
    return np.array([0.0, *(first - loss_of(task, model) for model in trained)])


def loss_of(task: Task, model: Mapping[str, torch.Tensor]) -> float:
    """The loss of a model on the whole test set."""
    task.module.load_state_dict(dict(model))
    with torch.inference_mode():
        return float(torch.nn.functional.cross_entropy(task.module(task.inputs), task.labels))


class _Trained:
    """The retraining game; its blocks are the trainings."""

    def __init__(self, utilities: Floats) -> None:
        self.table = utilities  # (2^n, n_trainings)
        self.clients = np.arange(len(utilities).bit_length() - 1)
        self.n_blocks = utilities.shape[1]

    def utilities(self, coalitions: Flags) -> Floats:
        return self.table[coalitions @ (1 << self.clients)]


def targets_of(utilities: Floats) -> dict[str, Floats]:
    """(n, n_trainings) each: retraining values and costs of leaving, from (2^n, n_trainings)."""
    game = _Trained(utilities)
    without = len(utilities) - 1 - (1 << game.clients)  # the numbers of the coalitions without one client
    values = fedworth.shapley(game, np.random.default_rng(0)).values
    return {"value": values, "leaving": utilities[-1] - utilities[without]}


def valued(ledger: Ledger, task: Task, settings: SimulationSettings) -> list[tuple[str, Floats]]:
    """The values by every method and remedy that does not refuse."""
    chosen: dict[str, Any] = {"weighting": settings.aggregation, "seed": settings.seed}
    of = federation(ledger, task, **chosen)
    found = []
    for key in METHODS:
        try:
            found.append((key, of.value(key).values))
        except FedworthError:  # the paper's needs a round with everyone, for example
            continue
    by_round = of.value(OURS).by_round
    if by_round is not None:
        found += [("late", np.arange(1, len(by_round) + 1) @ by_round), ("last-round", by_round[-1])]
    at_end = federation(ledger, task, oracle=AtTheEnd(ledger, FastOracle(task, n_threads=1)), **chosen)
    return [*found, ("at-end", at_end.value(OURS).values)]


class AtTheEnd:
    """Measures coalitions of round t on models that are moved by all later steps of the server."""

    def __init__(self, ledger: Ledger, oracle: FastOracle) -> None:
        self.oracle, self.task, self.measure, self.n_blocks = oracle, oracle.task, oracle.measure, oracle.n_blocks
        models = [*(ledger.open_round(t).global_model for t in range(1, ledger.n_rounds)), ledger.final_model()]
        self.later = [{name: models[-1][name] - tensor for name, tensor in model.items()} for model in models]

    def utilities(self, round_: Any, mixtures: Any) -> Floats:
        """(n_mixtures, n_blocks)."""
        steps = self.later[round_.entry.round_index]

        def moved(model: Model) -> Model:
            return {name: tensor + steps[name] for name, tensor in model.items()}

        clients = {client: moved(model) for client, model in round_.client_models.items()}
        apart = {client: moved(model) for client, model in round_.apart_models.items()}
        later = replace(round_, global_model=moved(round_.global_model), client_models=clients, apart_models=apart)
        return self.oracle.utilities(later, mixtures)


def compared(values: Floats, targets: Mapping[str, Floats]) -> Row:
    """How well values predict the targets."""
    row: Row = {}
    for name, runs in targets.items():
        target = runs.mean(axis=1)
        luck = float(runs.var(axis=1, ddof=1).mean()) / runs.shape[1]
        row[name] = _pearson(values, target)
        row[f"{name}_rank"] = rank_correlation(values, target)
        row[f"{name}_reliable"] = max(0.0, 1 - luck / float(target.var(ddof=1)))
    costs = targets["leaving"].mean(axis=1)
    chosen = int(np.argmin(values))
    row["dropped_best"] = float(costs[chosen] == costs.min())
    row["regret"] = float((costs[chosen] - costs.min()) / np.ptp(costs))
    row["regret_at_random"] = float((costs.mean() - costs.min()) / np.ptp(costs))
    return row


def _pearson(first: Floats, second: Floats) -> float:
    if min(np.ptp(first), np.ptp(second)) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def corrected(frame: pd.DataFrame, target: str) -> float | None:
    """The mean correlation with a target, had the target no training luck in it; None if it is mostly luck."""
    reliable = float(frame[f"{target}_reliable"].mean())
    return float(frame[target].mean()) / reliable**0.5 if reliable >= LEAST_RELIABLE else None


def with_interval(frame: pd.DataFrame, target: str, form: str = ".2f") -> str:
    """The corrected correlation and its 95 % interval, from drawing federations again."""
    found = corrected(frame, target)
    if found is None:
        return NONE
    rng, groups = np.random.default_rng(0), frame.groupby(["setup", "kind", "seed"], sort=False)
    means = groups[[target, f"{target}_reliable"]].mean().to_numpy()  # (n_federations, 2)
    drawn = means[rng.integers(0, len(means), (1000, len(means)))].mean(axis=1)
    low, high = np.quantile(drawn[:, 0] / np.sqrt(np.maximum(drawn[:, 1], LEAST_RELIABLE)), (0.025, 0.975))
    return f"{found:{form}} [{low:{form}}, {high:{form}}]"


def label(key: str) -> str:
    """A method's name for readers."""
    return NAMED[key].label if key in NAMED else LABELS.get(key, key)


def section(frame: pd.DataFrame) -> Section:
    """How well each method predicts the targets, over all kinds, and by kind for some methods."""
    groups = [(int(n), str(key), rows) for (n, key), rows in frame.groupby(["take_part", "method"], sort=False)]
    kinds = [
        (str(kind), f"{place}", rows)
        for (kind, place), rows in frame.assign(
            place=frame.data_set + ", " + frame.n_steps.astype(str) + " steps"
        ).groupby(["kind", "place"], sort=False)
    ]
    return Section(
        table(_line(n, key, rows) for n, key, rows in groups),
        panels=[lambda axes: _draw(frame, "value", axes), lambda axes: _draw(frame, "leaving", axes)],
        notes=answers(frame),
        appendix=table(_kind_line(*kind) for kind in kinds),
        n_names=2,
    )


def _line(n: int, key: str, rows: pd.DataFrame) -> dict[str, str]:
    return {
        "take part": f"{n} of {N_CLIENTS}",
        "method": label(key),
        "retraining value": with_interval(rows, "value"),
        "ranks": number(rows.value_rank.mean()),
        "cost of leaving": with_interval(rows, "leaving"),
        "ranks ": number(rows.leaving_rank.mean()),
        "best one dropped": share_of(rows.dropped_best == 1).text(),
        "regret": mean_of(rows.regret, SHARES).text(),
        "federations": str(rows.groupby(["setup", "kind", "seed"]).ngroups),
    }


def _kind_line(kind: str, place: str, rows: pd.DataFrame) -> dict[str, str]:
    def of(key: str, target: str) -> str:
        return number(corrected(rows[rows.method == key], target))

    keys = ("fedsv", OURS, "leave-one-out", "at-end")
    return {
        "kind": kind,
        "data": place,
        "not luck: value / leaving": f"{number(rows.value_reliable.mean())} / {number(rows.leaving_reliable.mean())}",
        **{f"{label(key)}: value / leaving": f"{of(key, 'value')} / {of(key, 'leaving')}" for key in keys},
    }


def answers(frame: pd.DataFrame) -> list[str]:
    """What the tables say, in sentences."""
    ours = frame[frame.method == OURS]
    clean, bad = ("IID", "label skew", "unequal sizes"), ("noisy labels", "a free rider")
    parts = []
    for names, what in ((clean, "clean data"), (bad, "one or two clients with bad data or none")):
        rows = ours[ours.kind.isin(names)]
        parts.append(
            f"With {what}, ComFedSV by models correlates by {with_interval(rows, 'value')} with the retraining value "
            f"and by {with_interval(rows, 'leaving')} with the cost of leaving"
        )
    share = f"{100 * ours.dropped_best.mean():.0f} %"
    drop = f"In {share} of the cases its lowest value is the client that costs least to lose"
    chance = f"a client drawn at random: {100 / N_CLIENTS:.0f} %"
    regrets = f"its regret is {ours.regret.mean():.2f}, and {ours.regret_at_random.mean():.2f} at random"
    some = frame[frame.take_part == N_SOME]
    both = [f"{with_interval(some[some.method == key], 'value')} by {label(key)}" for key in ("fedsv", OURS)]
    return [
        *(f"{part}." for part in parts),
        f"With {N_SOME} of {N_CLIENTS} clients a round, the correlation with the retraining value is "
        f"{' and '.join(both)}.",
        f"{drop} ({chance}); {regrets}.",
        f"Methods nearer to the retraining value than ComFedSV by models: {nearer(frame, 'value')}.",
        f"Methods nearer to the cost of leaving: {nearer(frame, 'leaving')}.",
    ]


def nearer(frame: pd.DataFrame, target: str) -> str:
    """The methods and remedies whose correlation with a target is higher than ours, by Wilcoxon's test at 5 %."""
    found = []
    for n, rows in frame.groupby("take_part", sort=False):
        wide = rows.pivot_table(index=["setup", "kind", "seed"], columns="method", values=target)
        names = [label(key) for key in wide if key != OURS and p_less(wide[OURS], wide[key]) < LEVEL]
        found.append(f"with {n} of {N_CLIENTS} a round {', '.join(names) or 'none'}")
    return "; ".join(found)


def _draw(frame: pd.DataFrame, target: str, axes: Axes) -> None:
    keys = ("fedsv", OURS, "leave-one-out", "at-end")
    columns = {
        REMEDIES.get(key, key): [
            corrected(frame[(frame.method == key) & (frame.kind == kind)], target) or 0.0 for kind in KINDS
        ]
        for key in keys
    }
    figures.bars(axes, columns)
    figures.ticks(axes, list(KINDS))
    names = {"value": "retraining value", "leaving": "cost of leaving"}
    axes.set(title=names[target], ylabel="corrected correlation", ylim=(0, 1.05))


STUDY = Study(
    "retraining",
    "Do values predict what leaving costs?",
    f"""A value is made round by round: what did a client add to models that the others had trained? People often \
want the answer to one of two other questions. The *retraining value* of a client is its Shapley value if every \
coalition of clients is trained from scratch. The *cost of leaving* is what the final model loses if everyone but \
this client trains from the start. For each of these federations of {N_CLIENTS} clients we trained all \
{2**N_CLIENTS - 1} coalitions, {N_TRAININGS} times each with other batches and with all members in every round. Both \
targets are measured on the whole test set. The methods see one recorded federation, in which all clients or \
{N_SOME} of {N_CLIENTS} take part in a round, and at most {N_SAMPLES} test samples.

The table shows correlations over the clients of a federation, averaged over federations, with 95 % bootstrap \
intervals over federations. Training luck in the target lowers a correlation, so we divide by the root of the part of \
the target's variance that is not luck. A corrected correlation may exceed 1 by chance, and none is given (–) where \
luck is more than {100 * (1 - LEAST_RELIABLE):.0f} % of the variance. *Ranks* are Spearman's correlations, not \
corrected. *Best one dropped* is how often the client with the lowest value is the one that costs least to lose. \
*Regret* is how much more it costs to lose this client than the best one to lose, relative to the range of all \
clients' costs; 0 is perfect. Client 0 of *a free rider* sends back the model it got. Two of the clients with *noisy \
labels* have 30 % wrong ones. In *a copy*, clients have two classes each, and client 5 is a copy of client 0.""",
    section,
    scales={
        "page": {
            name: Extent(5)
            for name in ("retraining-digits-1", "retraining-digits", "retraining-mnist-1", "retraining-mnist")
        },
        "tiny": {"digits": Extent(1, 2)},
    },
    cases=cases,
    trial=trial,
    page="retraining.md",
)
