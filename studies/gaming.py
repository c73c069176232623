"""Gaming: what a client can gain without better data, and how often it is found. Not one of the paper's studies.

Client 0 misbehaves in every round while the federation trains; the others are honest. One row a federation: its share
of all positive values, and the findings that name it. Low value and harm are not counted: they say nothing about
conduct.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes

import fedworth
from fedworth import Answer, SimulationSettings
from studies import figures
from studies.bars import Claim
from studies.federations import simulated
from studies.misconduct import CHEAT, Act, Answers, Memory, Model, length, minus, plus
from studies.setups import Extent, Setup
from studies.study import Case, Row, Section, Study
from studies.tables import NONE, number, table

SECOND = "8"
"""The second identity of client 0, where it has one."""

AS_ONE = "two identities, valued as one"
METHODS = ("comfedsv-models", "fedsv", "fedsv-equal")
GAIN = 0.05
N_LEAKED = 100
FIRST_LENGTH = 0.01
"""Length of the first update of a client without data, in lengths of the global model: it has seen no step yet."""

FEDERATIONS: Mapping[str, Mapping[str, Any]] = {
    "IID, all": {"partition": "iid", "n_participants": 8},
    "Dirichlet 1, 4 of 8": {"partition": "dirichlet", "alpha": 1.0, "n_participants": 4},
    "Dirichlet 0.5, all": {"partition": "dirichlet", "alpha": 0.5, "n_participants": 8},
}


@dataclass(kw_only=True)
class Game(Memory):
    """What the client that games remembers and draws, and its way to answer."""

    settings: SimulationSettings
    data: Path | None
    scratch: Path
    kept: Model | None = None
    first_round: int = 0

    def __post_init__(self) -> None:
        self.rng = torch.Generator().manual_seed(self.settings.seed)

    @cached_property
    def task(self) -> fedworth.Task:
        """The server's task with its test set."""
        short = fedworth.simulate(replace(self.settings, n_rounds=1), self.scratch / "short", data_folder=self.data)
        return fedworth.task_of(short, data_folder=self.data)

    def noise(self, like: Model) -> Model:
        """Normal noise of the same length as another update."""
        drawn = {name: torch.randn(t.shape, generator=self.rng, dtype=torch.float64) for name, t in like.items()}
        return scaled(drawn, length(like) / length(drawn))

    def kept_noise(self, like: Model) -> Model:
        """Noise of the same length as another update, in the same direction in every round."""
        self.kept = self.kept or self.noise(like)
        return scaled(self.kept, length(like) / length(self.kept))

    def first(self, start: Model) -> Model:
        """What a client without data sends before it has seen a step: noise."""
        return plus(start, self.noise(start), FIRST_LENGTH)


def scaled(update: Model, factor: float) -> Model:
    """An update times a number."""
    return {name: factor * tensor.double() for name, tensor in update.items()}


def added(first: Model, second: Model) -> Model:
    """The sum of two updates."""
    return {name: tensor + second[name] for name, tensor in first.items()}


def _longer(factor: float) -> Act:
    return lambda _, start, answers: plus(start, minus(answers[CHEAT].model, start), factor)


def _steps(factor: float, share: float, *, n: int = 1, is_kept: bool = False) -> Act:
    """The mean of the server's last n steps, times a factor, with noise of a share of its length."""

    def act(game: Game, start: Model, _: Answers) -> Model:
        used = [minus(*pair) for pair in pairwise([start, *reversed(game.starts)])][:n]
        if not used:
            return game.first(start)
        step = scaled(used[0], 1 / len(used))
        for more in used[1:]:
            step = added(step, scaled(more, 1 / len(used)))
        noise = game.kept_noise(step) if is_kept else game.noise(step)
        return plus(start, added(step, scaled(noise, share)), factor)

    return act


def _mean(factor: float, share: float) -> Act:
    """The mean of the others' updates of the same round, times a factor, with noise."""

    def act(game: Game, start: Model, answers: Answers) -> Model:
        updates = [minus(answer.model, start) for name, answer in answers.items() if name != CHEAT]
        mean = {name: torch.stack([update[name] for update in updates]).mean(0) for name in start}
        return plus(start, added(mean, scaled(game.noise(mean), share)), factor)

    return act


def _copy_last(game: Game, start: Model, _: Answers) -> Model:
    """Another client's last update, with noise of 30 % of its length."""
    if not game.others:
        return game.first(start)
    return plus(start, added(game.others[-1], scaled(game.noise(game.others[-1]), 0.3)))


def _copy_now(game: Game, start: Model, answers: Answers) -> Model:
    """Another client's update of the same round, with the same noise: the two collude."""
    update = minus(next(a.model for name, a in answers.items() if name != CHEAT), start)
    return plus(start, added(update, scaled(game.noise(update), 0.3)))


def _claims(factor: int) -> Act:
    """An honest update, and more samples than the client has."""
    return lambda _, __, answers: Answer(answers[CHEAT].model, factor * int(answers[CHEAT].n_samples))


def _leaked(game: Game, start: Model, _answers: Answers) -> Model:
    """Trained on samples of the server's test set, as the other clients train on theirs."""
    task, settings = game.task, game.settings
    model = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    for _ in range(settings.n_steps or 1):
        some = torch.randperm(min(N_LEAKED, len(task.labels)), generator=game.rng)[: settings.batch_size]
        outputs = torch.func.functional_call(task.module, model, task.inputs[some])
        slopes = torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, task.labels[some]), [*model.values()])
        steps = zip(model.items(), slopes, strict=True)
        model = {name: (tensor - settings.rate * slope).detach().requires_grad_() for (name, tensor), slope in steps}
    return {name: tensor.detach() for name, tensor in model.items()}


SPLIT = ("two identities, data halved", AS_ONE)
ACTS: Mapping[str, tuple[bool, Act | None]] = {
    "honest": (True, None),
    "update × 2": (True, _longer(2.0)),
    "update × 4": (True, _longer(4.0)),
    "claims 4 times its samples": (True, _claims(4)),
    **dict.fromkeys(SPLIT, (True, None)),
    "trained on 100 test samples": (False, _leaked),
    "no update": (False, lambda _, start, __: start),
    "last step, 10 % noise": (False, _steps(1.0, 0.1)),
    "last step × 3, 10 % noise": (False, _steps(3.0, 0.1)),
    "last step × 3, 100 % noise": (False, _steps(3.0, 1.0)),
    "last three steps, 10 % noise": (False, _steps(1.0, 0.1, n=3)),
    "last step, 50 % noise that it keeps": (False, _steps(1.0, 0.5, is_kept=True)),
    "last step × 3, 50 % noise that it keeps": (False, _steps(3.0, 0.5, is_kept=True)),
    "mean of the others, 10 % noise": (False, _mean(1.0, 0.1)),
    "mean of the others × 3, 10 % noise": (False, _mean(3.0, 0.1)),
    "another's last update, 30 % noise": (False, _copy_last),
    "another's update, 30 % noise": (False, _copy_now),
}
"""By name: whether the client has data of its own, and what it does."""

FEW = ("honest", AS_ONE, "trained on 100 test samples", "last step × 3, 10 % noise")


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """Every behaviour in every federation; the same seed has the same data in all of them."""
    made = []
    for place, changes in FEDERATIONS.items():
        for act in FEW if extent.special == "few" else ACTS:
            size: dict[str, Any] = {"n_clients": 8, "n_rounds": extent.n_rounds, **changes}
            if act in SPLIT:
                n_participants = 9 if changes["n_participants"] == 8 else 4
                size |= {"n_clients": 9, "copies": ((8, 0),), "copies_halved": True, "n_participants": n_participants}
            options = {"federation": place, "behaviour": act}
            fixed = {"aggregation": "samples", "with_truth": False}
            made += [Case(name, setup.federation(seed, **size, **fixed), options) for seed in seeds]
    return made


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """One row: the share of client 0, and who was named."""
    settings, name = case.federation, case.options["behaviour"]
    act = ACTS[name][1]
    game = None if act is None else Game(act, settings=settings, data=data, scratch=scratch)
    ledger, task = simulated(settings, scratch, data, misconduct=game)
    how = fedworth.ValuationSettings(as_one=(f"{CHEAT},{SECOND}",) if name == AS_ONE else ())
    work = fedworth.WorkSettings(n_threads=1, cache=False)
    report = fedworth.report_on(ledger, task, how, methods=METHODS, work=work)
    named = [(found.kind.name, set(found.clients)) for found in report.findings]
    cheats = {CHEAT, SECOND} if name in SPLIT else set() if name == "honest" else {CHEAT}
    right = [found for found in named if found[1] & cheats]
    # a finding that names the client that games may also name whom it has copied: no false alarm
    wrong = set[str]().union(*(clients for _, clients in named)) - set[str]().union(*(clients for _, clients in right))
    own = [place for place, client in enumerate(ledger.clients) if client in cheats | {CHEAT}]
    return [
        {
            "federation": case.options["federation"],
            "behaviour": name,
            "share": float(report.chosen.shares[own].sum()),
            "equal_length": float(report.valued_by("fedsv-equal").shares[own].sum()),
            "named_as": "; ".join(sorted({kind for kind, _ in right})),
            "n_honest": len(ledger.clients) - len(cheats),
            "n_false": len(wrong),
        }
    ]


def section(frame: pd.DataFrame) -> Section:
    """One line a behaviour and federation, over seeds."""
    frame = with_gains(frame)
    groups = list(frame.groupby(["behaviour", "federation"], sort=False))
    order = {name: place for place, name in enumerate(ACTS)}
    groups.sort(key=lambda found: order[found[0][0]])
    return Section(
        table(_line(rows) for _, rows in groups),
        claims=[*_claims_of_flags(frame), *_claims_of_alarms(frame)],
        panels=[lambda axes: _draw(frame, axes)],
        n_names=2,
    )


def with_gains(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with the honest share of the same federation and seed, and the gain over it."""
    honest = frame[frame.behaviour == "honest"][["federation", "seed", "share"]]
    found = frame.merge(honest.rename(columns={"share": "honest"}), on=["federation", "seed"], how="left")
    kinds = found.named_as.fillna("").astype(str)
    return found.assign(named_as=kinds, gain=found.share - found.honest, is_flagged=kinds != "")


def _line(rows: pd.DataFrame) -> dict[str, str]:
    gains, is_honest = rows[rows.gain > GAIN], rows.behaviour.iloc[0] == "honest"
    kinds = [kind for text in rows.named_as for kind in text.split("; ") if kind]
    counts = {kind: kinds.count(kind) for kind in sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kind))}
    return {
        "behaviour": str(rows.behaviour.iloc[0]),
        "federation": str(rows.federation.iloc[0]),
        "share": number(rows.share.mean(), ".0%"),
        "gain": NONE if is_honest else number(100 * rows.gain.mean(), "+.0f"),
        "at equal length": number(rows.equal_length.mean(), ".0%"),
        "flagged": NONE if is_honest else f"{rows.is_flagged.sum()} of {len(rows)}",
        "gains > 5": NONE if is_honest else str(len(gains)),
        "of these flagged": str(gains.is_flagged.sum()) if len(gains) and not is_honest else NONE,
        "findings": ", ".join(f"{kind} ({count})" for kind, count in counts.items()) or NONE,
    }


def _claims_of_flags(frame: pd.DataFrame) -> list[Claim]:
    made = []
    for name in (name for name, (has_data, _) in ACTS.items() if not has_data and name in set(frame.behaviour)):
        gains = frame[(frame.behaviour == name) & (frame.gain > GAIN)]
        n, flagged = len(gains), int(gains.is_flagged.sum())
        why = f"{flagged} of {n} runs" if n else "it never gains so much"
        made.append(Claim(f"{name}: flagged in 90 % of the runs in which it gains 5 points", flagged >= 0.9 * n, why))
    return made


def _claims_of_alarms(frame: pd.DataFrame) -> list[Claim]:
    made = []
    for place, rows in frame[frame.behaviour == "honest"].groupby("federation", sort=False):
        n, n_false = int(rows.n_honest.sum()), int(rows.n_false.sum())
        why = f"{n_false} of {n} clients, {n_false / n:.1%}"
        made.append(Claim(f"clean, {place}: at most 2 % of clients are named", n_false <= 0.02 * n, why))
    return made


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    shown = frame[frame.behaviour != "honest"]
    names = [name for name in ACTS if name in set(shown.behaviour)]
    gains = shown.groupby(["federation", "behaviour"]).gain.mean().unstack("behaviour").reindex(columns=names)
    figures.bars(axes, {place: (100 * gains.loc[place]).to_list() for place in FEDERATIONS if place in gains.index})
    axes.set_xticks(range(len(names)), [str(place + 1) for place in range(len(names))])
    axes.set(
        title="gain over honest behaviour", xlabel="behaviour, in the order of the table", ylabel="points of share"
    )


STUDY = Study(
    "gaming",
    "What a client can gain without better data",
    """One client of eight tries to get a larger share of the pool than its data are worth, in every round while the \
federation trains. The others are honest. Models are averaged by samples, and the pool is shared by positive values \
(ComFedSV by models). The data are scanned digits, the model is a network with one hidden layer, and the steps are so \
small that longer updates pay. In the second federation four of eight clients take part in a round, and all in the \
first.

*Share* is what the client gets, averaged over seeds. *Gain* is how many points more that is than its share on the \
same seed if it were honest. *At equal length* is its share by FedSV if every update had the median length of its \
round, which is what `--clip median` pays by. *Flagged* counts the runs in which a finding names the client, and \
*gains > 5* the runs in which it gains more than five points. Findings of low value and of harm are not counted, \
because they say nothing about conduct.

**What a client can do, and what helps.**

- *Send a longer update.* This pays where the others take small steps and hold similar data. The finding *value by \
length* gives both shares; with `--clip median` a longer update gains nothing. Do not clip while a follower takes \
part: where data differ, the column shows that a follower gets more at equal length.
- *Follow the server.* A client without data repeats the server's last steps, or the mean of the others, at any \
length, with noise so that it does not look like a copy. The finding *follower* looks in each client's updates for \
something that is the client's own and comes back from round to round. A follower has nothing of this kind.
- *Copy another client.* The finding *look-alikes* compares two clients in different rounds, so noise does not hide a \
copy.
- *Take part twice.* A client that splits its data over two names gets more for the same data. `--as-one a,b` values \
both as one. A finding proposes this only where the client's data differ from the others'.

**What we cannot see.**

- *A client that splits data like everybody's.* Where all data are alike, its two names look like any two clients. \
Know who takes part: ask for one name for each organisation, with its key.
- *Noise that a follower keeps.* If a follower adds the same noise in every round, the noise looks like its own data. \
It gains most where its honest share would be small, and is named only where the length of its updates gives it away.
- *A follower in few rounds.* The finding needs three rounds of the client, and more if it adds as much noise as \
signal.
- *A larger sample count.* A server that weighs by samples must believe the number. Only a count of a hundred times \
the median is noted.

**What nobody can see:** a client that has samples of the test set. It trains on what is rewarded, and its updates \
are genuine. Keep the test set secret, draw a new one from time to time, and do not show values by round to clients \
that could use them to find out what pays.

False alarms are counted on the honest federations, for all kinds of findings. Where each client takes part in few \
rounds, two honest clients with data of the same kind can be called look-alikes; a bar below says how often.

All thresholds were chosen on seeds from 1000 on, on these federations and on MNIST.""",
    section,
    scales={
        "page": {"gaming": Extent(10, 8)},
        "tiny": {"digits": Extent(1, 4, special="few")},
    },
    cases=cases,
    trial=trial,
    page="gaming.md",
)
