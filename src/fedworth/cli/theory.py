"""fedworth theory: the paper's statements in numbers, corrected."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedworth.cli.show import show
from fedworth.cli.values import BY_FACTORS, BY_MODELS, How
from fedworth.errors import UsageError

if TYPE_CHECKING:
    from fedworth.arrays import Floats
    from fedworth.valuation.federation import Federation

LEGENDS = {
    "Observation 1": "s: difference of two equal clients' values, in units of δ, the value of one round; bound: the "
    "paper's lower bound on the probability of s or more, corrected; chance: the exact probability",
    "Proposition 1": "bound: the utility matrix is within ε of a matrix of this rank",
    "Proposition 2": "bound: the utility matrix is within ε of a matrix of this rank",
    "Numeric ε-rank": "lower: no matrix of a smaller rank is within ε of these utilities; upper svd, upper cover: "
    "a matrix of this rank is, by singular values or by rounds that are similar",
    "Theorem 1": "delta: the completion's largest error of one coalition, summed over the rounds; value error: of the "
    "worst value; gap: how far apart equal clients are valued, or from 0 those that add nothing; bound: the most that "
    "delta allows",
}


@dataclass(frozen=True)
class Observation1:
    """Observation 1: how likely FedSV values two equal clients differently by s·δ or more.

    Args:
        clients: Number of clients.
        participants: Number of clients that take part in a round.
        rounds: Number of rounds in which not everyone takes part.
        sigma: Standard deviation of what a round is worth, in units of δ.

    Example:
        fedworth theory observation-1 --clients 10 --participants 3 --rounds 10
    """

    clients: int = 10
    participants: int = 3
    rounds: int = 10
    sigma: float = 0.0

    def run(self, *, as_json: bool) -> None:
        if self.rounds < 1:
            raise UsageError(f"--rounds {self.rounds}: expected 1 or more")
        from fedworth.theory.observation1 import unfairness_bound, unfairness_chance

        setting = (self.clients, self.participants, self.rounds)
        rows = [
            {"s": s, "bound": unfairness_bound(*setting, s), "chance": unfairness_chance(*setting, s, self.sigma)}
            for s in range(1, self.rounds + 1)
        ]
        given = {"clients": self.clients, "participants": self.participants, "rounds": self.rounds}
        _show("Observation 1", given, rows, as_json=as_json)


@dataclass(frozen=True)
class RankBound:
    """Propositions 1 and 2: bounds on the ε-rank of the utility matrix.

    Args:
        ledger: Bound of Proposition 1, with path length, learning rates, rounds and clients of this simulated ledger.
        convexity: Bound of Proposition 2 instead, for a loss that is strongly convex with this constant μ.
        rounds: Number of rounds, for Proposition 2.
        clients: Number of clients, for Proposition 2.
        lipschitz: Lipschitz constant L₁ of the loss.
        smoothness: Smoothness constant L₂ of the loss.
        epsilon: Largest error of a cell of the utility matrix.

    Example:
        fedworth theory rank-bound --ledger runs/demo/ledger --lipschitz 1 --smoothness 1 --epsilon 0.1
    """

    ledger: Path | None = None
    convexity: float | None = None
    rounds: int | None = None
    clients: int | None = None
    lipschitz: float = 1.0
    smoothness: float = 1.0
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        if self.convexity is None and self.ledger is None:
            raise UsageError("Proposition 1 needs --ledger, Proposition 2 --convexity: give one of them")

    def run(self, *, as_json: bool) -> None:
        import numpy as np

        from fedworth.ledger.ledger import Ledger
        from fedworth.simulation.simulate import simulation_of
        from fedworth.theory.rank_bounds import path_length, rank_bound_lipschitz, rank_bound_strongly_convex

        constants: dict[str, Any] = {
            "lipschitz": self.lipschitz,
            "smoothness": self.smoothness,
            "epsilon": self.epsilon,
        }
        if self.convexity is not None:
            if self.rounds is None or self.clients is None:
                raise UsageError("Proposition 2 needs --rounds and --clients")
            shape: dict[str, Any] = {"n_rounds": self.rounds, "n_clients": self.clients}
            bound = rank_bound_strongly_convex(mu=self.convexity, **constants, **shape)
            given = {**constants, **shape, "convexity": self.convexity}
            _show("Proposition 2", given, [{"bound": bound}], as_json=as_json)
        elif self.ledger is not None:
            ledger = Ledger.open(self.ledger)
            rates = simulation_of(ledger).learning_rate()
            models = (round_.global_model.values() for round_ in ledger.rounds())
            flat = [np.concatenate([tensor.double().numpy().ravel() for tensor in model]) for model in models]
            measured: dict[str, Any] = {
                "path_length": path_length(np.stack(flat)),
                "eta_first": rates.at(0),
                "eta_last": rates.at(ledger.n_rounds - 1),
                "n_rounds": ledger.n_rounds,
                "n_clients": len(ledger.clients),
            }
            bound = rank_bound_lipschitz(**constants, **measured)
            _show("Proposition 1", {**constants, **measured}, [{"bound": bound}], as_json=as_json)


@dataclass(frozen=True)
class Rank:
    """Numeric bounds on the ε-rank of the full utility matrix of a simulated ledger.

    Args:
        ledger: A ledger simulated with the truth.
        epsilon: Largest error of a cell of the utility matrix.

    Example:
        fedworth theory rank runs/demo/ledger --epsilon 0.01
    """

    ledger: Path
    epsilon: float = 0.01
    how: How = field(default_factory=How, metadata=BY_MODELS)

    def run(self, *, as_json: bool) -> None:
        from fedworth.theory.rank_bounds import rank_lower, rank_upper_cover, rank_upper_svd

        cells = _true_cells(self.how.federation(self.ledger))
        row = {
            "lower": rank_lower(cells, self.epsilon),
            "upper_svd": rank_upper_svd(cells, self.epsilon),
            "upper_cover": rank_upper_cover(cells, self.epsilon),
        }
        given = {"epsilon": self.epsilon, "largest_utility": float(abs(cells).max())}
        _show("Numeric ε-rank", given, [row], as_json=as_json)


@dataclass(frozen=True)
class Fairness:
    """Theorem 1 on a simulated ledger: δ of the completion by factors, the bounds that follow, and the errors made.

    Args:
        ledger: A ledger simulated with the truth.

    Example:
        fedworth theory fairness runs/demo/ledger
    """

    ledger: Path
    how: How = field(default_factory=How, metadata=BY_FACTORS)

    def run(self, *, as_json: bool) -> None:
        import numpy as np

        from fedworth.coalitions import coalitions_of
        from fedworth.theory.fairness import completeness, fairness_bounds, fairness_report

        federation = self.how.federation(self.ledger)
        truth, completion = _true_cells(federation), federation.by_factors()
        n = len(federation.recorded.heard)
        everyone = coalitions_of(np.arange(n), n)[1:]
        completed = [completion.game(t).utilities(everyone).sum(axis=1) for t in range(federation.recorded.n_rounds)]
        delta = completeness(truth, np.stack(completed))
        bounds, values = fairness_bounds(delta, n), federation.value("comfedsv").values
        gaps = fairness_report(np.concatenate([[0.0], truth.sum(axis=0)]), values[federation.recorded.heard])
        row = {
            "value_error": float(np.nanmax(np.abs(values - federation.value("truth").values))),
            "value_error_bound": bounds.value_error,
            "symmetry_gap": gaps.symmetry_gap,
            "symmetry_bound": bounds.symmetry,
            "zero_element_gap": gaps.zero_element_gap,
            "zero_element_bound": bounds.zero_element,
            "additivity_bound": bounds.additivity,
        }
        _show("Theorem 1", {"delta": delta}, [row], as_json=as_json)


def _true_cells(federation: "Federation") -> "Floats":
    """(n_rounds, 2^n − 1): the full utility matrix without the empty coalition."""
    import numpy as np

    from fedworth.coalitions import coalitions_of
    from fedworth.errors import TooManyError
    from fedworth.games.shapley import MOST_ENUMERATED

    n = len(federation.recorded.heard)
    if n > MOST_ENUMERATED:
        raise TooManyError(f"{n} clients: the full utility matrix is measured for at most {MOST_ENUMERATED}")
    everyone = coalitions_of(np.arange(n), n)[1:]
    games = [federation.recorded.true_game(t) for t in range(federation.recorded.n_rounds)]
    return np.stack([game.utilities(everyone).sum(axis=1) for game in games])


def _show(statement: str, given: dict[str, Any], rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from fedworth.report.tables import Table

    setting = ", ".join(f"{key.replace('_', ' ')} {item:g}" for key, item in given.items())
    cells = tuple(tuple(f"{item:.6g}" for item in row.values()) for row in rows)
    headings = tuple(key.replace("_", " ") for key in rows[0])
    table = Table(f"{statement}: {setting}", headings, cells, legend=LEGENDS[statement])
    show({"statement": statement, **given, "rows": rows}, table, as_json=as_json)
