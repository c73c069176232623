"""What a study is: the cases it runs, the trial that measures one of them, and the section that shows the results."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from fedworth import SimulationSettings
from studies import NAMES
from studies.bars import Claim
from studies.setups import SETUPS, Extent, Setup

Row = dict[str, Any]
Draw = Callable[[Axes], None]


@dataclass(frozen=True)
class Case:
    """One federation to simulate, and what the trial should do with it."""

    setup: str
    federation: SimulationSettings
    options: Mapping[str, Any] = field(default_factory=dict)

    def key(self, study: str) -> str:
        """A name for the trial: a hash of everything that decides its rows."""
        document = {"study": study, "setup": self.setup, "options": dict(self.options), **asdict(self.federation)}
        return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Section:
    """What a study shows: the table on its page, claims or bars, figures, and a longer table for the appendix."""

    table: pd.DataFrame
    claims: Sequence[Claim] = ()
    panels: Sequence[Draw] = ()
    notes: Sequence[str] = ()
    appendix: pd.DataFrame | None = None
    appendix_panels: Sequence[Draw] = ()
    n_names: int = 1  # leading columns of `table` that hold names, not numbers


@dataclass(frozen=True)
class Study:
    """A study. One with a `source` has no trials of its own and shows the rows of another study."""

    name: str
    title: str
    about: str  # what a reader must know to read the table
    section: Callable[[pd.DataFrame], Section]
    claim: str = ""  # what the paper says, in one sentence
    scales: Mapping[str, Mapping[str, Extent]] = field(default_factory=dict)  # by scale and setup
    cases: Callable[[str, Setup, Extent, Sequence[int]], list[Case]] = lambda *_: []
    trial: Callable[[Case, Path, Path | None], list[Row]] = lambda *_: []
    source: str = ""
    first_seed: int = 0
    is_timed: bool = False  # measures time, so its trials run one after another
    page: str = "results.md"

    @property
    def rows_of(self) -> "Study":
        """The study whose rows this one shows."""
        return study_named(self.source) if self.source else self


def study_named(name: str) -> Study:
    """The study with this name."""
    if name not in NAMES:
        raise SystemExit(f"study {name!r} does not exist: expected one of {', '.join(NAMES)}, or all")
    found: Study = import_module(f"studies.{name.replace('-', '_')}").STUDY
    return found


def all_studies() -> list[Study]:
    """All studies, in the order of their pages."""
    return [study_named(name) for name in NAMES]


def cases_of(study: Study, scale: str, setups: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Case]:
    """The cases of a study at a scale; of these setups and seeds only, if there are any."""
    known = study.scales[scale]
    for name in setups:
        if name not in known:
            raise SystemExit(f"setup {name!r} is not part of {study.name} at this scale: expected {', '.join(known)}")
    cases: list[Case] = []
    for name in setups or known:
        extent = known[name]
        first = study.first_seed + extent.first_seed
        cases += study.cases(name, SETUPS[scale][name], extent, seeds or range(first, first + extent.n_seeds))
    return cases
