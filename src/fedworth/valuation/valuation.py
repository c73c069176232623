"""A valuation: each client's value by one method, with its uncertainty and what it rests on.

A client that cannot be valued has no value (NaN here, null in JSON), never a zero. A share is a client's part of all
positive values, so clients that did harm have a share of 0.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedworth.arrays import Floats
from fedworth.errors import UsageError, ValuationError, unknown_name
from fedworth.records import document_of, read_as
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.marginals import Marginals
from fedworth.valuation.notebook import notebook_html
from fedworth.valuation.ranking import ranks_of
from fedworth.valuation.uncertainty import Source, Uncertainty

COLUMNS = ("client", "method", "value", "standard_error", "low", "high", "share", "rank", "rank_low", "rank_high")
"""Of `report.csv` and of data frames; low and high are the ends of the 90 % interval."""


MOST_NAMED = 5
"""At most this many clients are named whose rank by another measure differs."""

GROUP_COLUMNS = ("client", "group", "value", "low", "high")


@dataclass(frozen=True, slots=True)
class ClientValue:
    """One client's value; None without a value, or where an error is unknown.

    Sorting a valuation sorts these by value, clients without a value first.

    Example:
        line = report["north"]
        print(line.value, line.low, line.high, line.share, line.rank, line.ranks)
    """

    client: str
    value: float | None
    low: float | None  # of the 90 % interval
    high: float | None
    share: float | None
    rank: int | None
    ranks: tuple[int, int] | None  # the interval of the rank

    def __lt__(self, other: "ClientValue") -> bool:
        return self._key < other._key

    @property
    def _key(self) -> float:
        return -math.inf if self.value is None else self.value

    @property
    def helps(self) -> bool | None:
        """True if the whole interval lies above zero, False if below; None if neither, or without an interval."""
        if self.low is None or self.high is None:
            return None
        return True if self.low > 0 else False if self.high < 0 else None


@dataclass(frozen=True, eq=False, repr=False)
class Valuation:
    """Values of all clients by one method.

    `valuation["a"]` is the line of client a, iterating gives all lines in the clients' order, and `sorted(valuation,
    reverse=True)` has the most valuable first. Valuations with equal documents are equal.

    Example:
        valuation = fedworth.value(utilities, "fedsv")
        print(valuation["north"].value, max(valuation).client, valuation.shares)
    """

    method: str
    clients: tuple[str, ...]
    values: Floats  # (n_clients,), NaN without a value
    completion: dict[str, Any] | None = None  # the summary of the completion; None if nothing was estimated
    notes: tuple[str, ...] = ()
    uncertainty: Uncertainty | None = None
    by_round: Floats | None = None  # (n_rounds, n_clients), adds up to the values
    groups: GroupValues | None = None  # on groups of test samples, if these have some
    marginals: Marginals | None = None  # what Shapley values rest on
    by_measure: dict[str, Floats] = field(default_factory=dict)  # (n_clients,) each: values by other measures
    block_values: Floats | None = None  # (n_clients, n_cells), adds up to the values; not kept in JSON
    n_evaluations: int = 0
    cautions: tuple[str, ...] = ()  # those of the notes that call for care with all values, however small the errors

    def __post_init__(self) -> None:
        n = len(self.clients)
        if self.values.shape != (n,):
            raise ValuationError(f"{self.method}: values of shape {self.values.shape}, expected {(n,)}")
        if np.isinf(self.values).any():
            raise ValuationError(f"{self.method}: the value of a client is infinite")
        uncertainty = self.uncertainty
        shapes = [
            ("standard deviations", None if uncertainty is None else uncertainty.standard_deviations, (n,)),
            ("chances", None if uncertainty is None else uncertainty.chances, (n, n)),
            ("values by group", None if self.groups is None else self.groups.values, (n, None)),
            ("contributions to large coalitions", None if self.marginals is None else self.marginals.large, (n,)),
            ("values by round", self.by_round, (None, n)),
            ("values by block", self.block_values, (n, None)),
        ]
        for what, array, shape in shapes:
            if array is not None and not _fits(array, shape):
                raise ValuationError(f"{self.method}: {what} of shape {array.shape}, expected {n} clients")
        if uncertainty is not None and len(uncertainty.rank_intervals) != n:
            raise ValuationError(f"{self.method}: {len(uncertainty.rank_intervals)} rank intervals, expected {n}")

    @property
    def label(self) -> str:
        """The method's name in tables."""
        from fedworth.valuation.methods import method_text  # the registry makes valuations

        return method_text(self.method).label

    @property
    def description(self) -> str:
        """What the method measures."""
        from fedworth.valuation.methods import method_text

        return method_text(self.method).description

    @property
    def shares(self) -> Floats:
        """(n_clients,): each client's part of all positive values; NaN without a value, or if none is positive."""
        positive = np.maximum(self.values, 0)
        total = float(np.nansum(positive))
        return positive / total if total > 0 else np.full(len(positive), np.nan)

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """1 for the most valuable; values that differ only by rounding share a rank; None without a value."""
        return tuple(None if math.isnan(rank) else int(rank) for rank in ranks_of(self.values))

    @property
    def covered(self) -> tuple[Source, ...]:
        """Which errors the intervals cover; nothing without intervals, or if there are no errors."""
        return () if self.uncertainty is None else tuple(self.uncertainty.shares)

    @property
    def is_mean_of_runs(self) -> bool:
        """Whether these are means of several recorded runs."""
        return self.uncertainty is not None and Source.RUNS in self.uncertainty.parts

    @property
    def standard_errors(self) -> Floats | None:
        """(n_clients,): of the values, from all sources that the intervals cover; None if they are unknown."""
        return None if self.uncertainty is None else self.uncertainty.standard_deviations

    @property
    def sampling_errors(self) -> Floats | None:
        """(n_clients,): standard errors of the sampling of coalitions alone; None if all were measured, or unknown."""
        uncertainty = self.uncertainty
        return (
            None
            if uncertainty is None or Source.SAMPLING not in uncertainty.shares
            else uncertainty.parts[Source.SAMPLING]
        )

    @property
    def intervals(self) -> Floats | None:
        """(n_clients, 2): the ends of the 90 % intervals; None if they are unknown."""
        return None if self.uncertainty is None else self.uncertainty.intervals(self.values)

    def __getitem__(self, client: str) -> ClientValue:
        if client not in self.clients:
            raise unknown_name("client", str(client), self.clients)
        return list(self)[self.clients.index(client)]

    def __iter__(self) -> Iterator[ClientValue]:
        n = len(self.clients)
        ends = np.full((n, 2), np.nan) if self.intervals is None else self.intervals
        rank_intervals = (None,) * n if self.uncertainty is None else self.uncertainty.rank_intervals
        numbers = np.column_stack([self.values, ends, self.shares]).tolist()
        for client, row, rank, ranks in zip(self.clients, numbers, self.ranks, rank_intervals, strict=True):
            value, low, high, share = (None if math.isnan(number) else number for number in row)
            yield ClientValue(client, value, low, high, share, rank, ranks)

    def __len__(self) -> int:
        return len(self.clients)

    def __eq__(self, other: object) -> bool:
        return self.document() == other.document() if isinstance(other, Valuation) else NotImplemented

    def __repr__(self) -> str:
        best = sorted(self, reverse=True)[:3]
        values = ", ".join(f"{line.client!r}: {line.value:+.4g}" for line in best if line.value is not None)
        return f"<Valuation by {self.method} of {len(self)} clients; {values}{', …' if len(self) > len(best) else ''}>"

    def _repr_html_(self) -> str:
        note = "" if self.uncertainty is None else self.uncertainty.sentence
        return notebook_html(f"{self.label} — {self.description}", repr(self), list(self), note)

    def to_dataframe(self) -> Any:
        """A pandas data frame with a row for each client, and the columns of `report.csv`.

        Example:
            fedworth.value(utilities, "fedsv").to_dataframe().sort_values("value")
        """
        return _data_frame(self.rows(), COLUMNS)

    def by_group(self) -> Any:
        """A pandas data frame with a row for each client and group of test samples: the value on it, and its interval.

        The values of a client's groups add up to its value.

        Example:
            valuation.by_group().pivot(index="client", columns="group", values="value")
        """
        return _data_frame(self.group_rows(), GROUP_COLUMNS)

    def group_rows(self) -> list[tuple[Any, ...]]:
        """A row for each client and group, in the order of `GROUP_COLUMNS`; None where nothing is known."""
        if self.groups is None:
            raise UsageError(
                f"{self.label} has no values by group: give the test samples groups, Task(…, groups=…), and choose a "
                "method that shares out games of models and a measure that is a mean over samples"
            )
        values, half = self.groups.values, self.groups.half_widths
        numbers = np.stack([values, values - half, values + half], axis=2).tolist()  # (n_clients, n_groups, 3)
        return [
            (client, name, *(None if math.isnan(number) else number for number in row))
            for client, rows in zip(self.clients, numbers, strict=True)
            for name, row in zip(self.groups.names, rows, strict=True)
        ]

    def rows(self) -> list[tuple[Any, ...]]:
        """A row for each client, in the order of `COLUMNS`; None where nothing is known."""
        errors = [math.nan] * len(self) if self.standard_errors is None else self.standard_errors.tolist()
        return [
            (x.client, self.method, x.value, None if math.isnan(error) else error, x.low, x.high, x.share, x.rank)
            + (x.ranks or (None, None))
            for x, error in zip(self, errors, strict=True)
        ]

    def document(self) -> dict[str, Any]:
        """The valuation as JSON in full precision, with derived entries."""
        derived = {"label": self.label, "description": self.description, "covered": list(map(str, self.covered))}
        document: dict[str, Any] = document_of(replace(self, block_values=None))
        if self.uncertainty is not None:
            known = self.uncertainty
            document["uncertainty"] |= {"trust": str(known.trust), "sentence": known.sentence, "advice": known.advice}
        lines = list(self)
        intervals = [None if line.low is None else [line.low, line.high] for line in lines]
        return {
            **document,
            **derived,
            "shares": [line.share for line in lines],
            "ranks": [line.rank for line in lines],
            "standard_errors": None if self.uncertainty is None else document["uncertainty"]["standard_deviations"],
            "intervals_90": None if self.intervals is None else intervals,
        }

    @staticmethod
    def from_document(document: Any) -> "Valuation":
        """The inverse of `document()`.

        Example:
            assert fedworth.Valuation.from_document(valuation.document()) == valuation
        """
        return read_as(Valuation, document, "a valuation", ValuationError)


def _data_frame(rows: list[tuple[Any, ...]], columns: tuple[str, ...]) -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("data frames need pandas: install it with  pip install 'fedworth[pandas]'") from None
    return pandas.DataFrame(rows, columns=list(columns))


def _fits(array: Floats, shape: tuple[int | None, ...]) -> bool:
    return array.ndim == len(shape) and all(
        expected in (None, n) for n, expected in zip(array.shape, shape, strict=True)
    )


def other_orders(valuation: Valuation, by_measure: Mapping[str, Floats]) -> Iterator[str]:
    """Clients whose rank by another measure lies outside their rank interval."""
    ranges = (None,) * len(valuation) if valuation.uncertainty is None else valuation.uncertainty.rank_intervals
    for name, values in by_measure.items():
        ranks = ranks_of(values).tolist()
        differing = [
            f"{client} has rank {rank:.0f} instead of {own}"
            for client, own, rank, ends in zip(valuation.clients, valuation.ranks, ranks, ranges, strict=True)
            if ends is not None and not ends[0] <= rank <= ends[1]
        ]
        if differing:
            more = f", and {len(differing) - MOST_NAMED} more differ" if len(differing) > MOST_NAMED else ""
            yield f"by {name} the order differs: {', '.join(differing[:MOST_NAMED])}{more}"
