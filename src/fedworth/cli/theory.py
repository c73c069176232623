"""fedworth theory: what the paper's observations, propositions and theorem say, corrected, in numbers."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedworth.cli.arguments import Wrapped
from fedworth.cli.options import command, real, whole
from fedworth.cli.show import show_json, show_table
from fedworth.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedworth.games.matrix import UtilityMatrix

WORDS = {
    "Observation 1": "s: how far apart two equal clients may be paid, in steps of δ, what one round is worth; "
    "bound: the paper's lower bound on the chance of it, corrected; chance: the exact one",
    "Proposition 1": "bound: the utility matrix is within ε of one of this rank",
    "Proposition 2": "bound: the utility matrix is within ε of one of this rank",
    "Numeric ε-rank": "lower: no matrix of a smaller rank is within ε of these utilities; upper svd, upper cover: "
    "one of this rank is, by singular values or by rounds that are alike",
    "Theorem 1": "delta: what the completion is wrong by for one coalition, over all rounds, at worst; value error: of "
    "the worst value; gap: how far apart equal clients are valued, or from 0 those that add nothing; bound: the most "
    "that delta allows",
}
EXAMPLE = "fedworth theory observation-1 --clients 10 --participants 3 --rounds 10"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command, with one subcommand a statement."""
    summary = "Evaluate the paper's theory: observation-1, rank-bound, rank, fairness."
    top = subparsers.add_parser(
        "theory",
        help=summary,
        description=summary,
        epilog=f"example:\n  {EXAMPLE}",
        formatter_class=Wrapped,
    )
    parts = top.add_subparsers(dest="statement", required=True, metavar="STATEMENT")
    _add_observation(parts)
    _add_rank_bound(parts)
    _add_rank(parts)
    _add_fairness(parts)


def _add_observation(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    summary = "Observation 1: how likely FedSV pays two equal clients differently by s·δ or more."
    parser = command(parts, "observation-1", summary, EXAMPLE, observation)
    parser.add_argument("--clients", type=whole, required=True, metavar="N", help="how many clients")
    parser.add_argument("--participants", type=whole, required=True, metavar="K", help="clients a round")
    parser.add_argument("--rounds", type=whole, required=True, metavar="T", help="rounds that do not hear everyone")
    parser.add_argument(
        "--sigma", type=real, default=0.0, metavar="σ", help="spread of a round's value, in δ (default 0)"
    )


def _add_rank_bound(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    summary = "Propositions 1 and 2: bounds on the ε-rank of the utility matrix."
    example = "fedworth theory rank-bound --ledger runs/demo/ledger --lipschitz 1 --smoothness 1 --epsilon 0.1"
    parser = command(parts, "rank-bound", summary, example, rank_bound)
    parser.add_argument(
        "--ledger", type=Path, help="take path length, rates, rounds and clients from this simulated run"
    )
    parser.add_argument("--convexity", type=real, metavar="μ", help="Proposition 2 instead of 1: no ledger needed")
    parser.add_argument("--rounds", type=whole, metavar="T", help="how many rounds")
    parser.add_argument("--clients", type=whole, metavar="N", help="how many clients")
    parser.add_argument("--lipschitz", type=real, required=True, metavar="L₁", help="Lipschitz constant of the loss")
    parser.add_argument("--smoothness", type=real, required=True, metavar="L₂", help="smoothness constant of the loss")
    parser.add_argument("--epsilon", type=real, required=True, metavar="ε", help="largest error of a cell")


def _add_rank(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    summary = "Numeric bounds on the ε-rank of a full utility matrix."
    parser = command(parts, "rank", summary, "fedworth theory rank runs/demo/truth.npz --epsilon 0.01", numeric_rank)
    parser.add_argument("truth", type=Path, help="the full matrix (.npz)")
    parser.add_argument("--epsilon", type=real, required=True, metavar="ε", help="largest error of a cell")


def _add_fairness(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    summary = "Theorem 1: δ of a completion, the bounds that follow, and the errors made."
    example = "fedworth theory fairness runs/demo/truth.npz runs/demo/factors.npz"
    parser = command(parts, "fairness", summary, example, fairness)
    parser.add_argument("truth", type=Path, help="the full matrix (.npz)")
    parser.add_argument("completion", type=Path, help="a completion of its seen part (.npz)")


def observation(args: argparse.Namespace) -> None:
    """Print P(|s_i − s_j| ≥ sδ) for every s."""
    if args.rounds < 1:
        raise UsageError(f"--rounds {args.rounds}: expected 1 or more")
    from fedworth.theory.observation1 import unfairness_bound, unfairness_chance

    setting = (args.clients, args.participants, args.rounds)
    rows = [
        {"s": s, "bound": unfairness_bound(*setting, s), "chance": unfairness_chance(*setting, s, args.sigma)}
        for s in range(1, args.rounds + 1)
    ]
    _show(
        "Observation 1", {"clients": args.clients, "participants": args.participants, "rounds": args.rounds}, rows, args
    )


def rank_bound(args: argparse.Namespace) -> None:
    """Print Proposition 1 for a recorded run, or Proposition 2."""
    if args.convexity is not None and (args.rounds is None or args.clients is None):
        raise UsageError("Proposition 2 needs --rounds and --clients")
    if args.convexity is None and args.ledger is None:
        raise UsageError("Proposition 1 needs --ledger, Proposition 2 --convexity: give one of them")
    from fedworth.theory.rank_bounds import rank_bound_lipschitz, rank_bound_strongly_convex

    constants = {"lipschitz": args.lipschitz, "smoothness": args.smoothness, "epsilon": args.epsilon}
    if args.convexity is not None:
        shape = {"n_rounds": args.rounds, "n_clients": args.clients}
        bound = rank_bound_strongly_convex(mu=args.convexity, **constants, **shape)
        _show("Proposition 2", {**constants, **shape, "convexity": args.convexity}, [{"bound": bound}], args)
        return
    measured = _measured(args.ledger)
    bound = rank_bound_lipschitz(**constants, **measured)
    _show("Proposition 1", {**constants, **measured}, [{"bound": bound}], args)


def numeric_rank(args: argparse.Namespace) -> None:
    """Print numeric bounds on the ε-rank."""
    from fedworth.games.matrix_file import load_utilities
    from fedworth.theory.rank_bounds import rank_lower, rank_upper_cover, rank_upper_svd

    cells = _full(load_utilities(args.truth, is_truth=True))
    row = {
        "lower": rank_lower(cells, args.epsilon),
        "upper_svd": rank_upper_svd(cells, args.epsilon),
        "upper_cover": rank_upper_cover(cells, args.epsilon),
    }
    _show("Numeric ε-rank", {"epsilon": args.epsilon, "largest_utility": float(abs(cells).max())}, [row], args)


def fairness(args: argparse.Namespace) -> None:
    """Print δ, the corrected bounds of Theorem 1, and the largest error of a value."""
    import numpy as np

    from fedworth.completion.completion_file import load_completion
    from fedworth.games.matrix import needed_columns
    from fedworth.games.matrix_file import load_utilities
    from fedworth.theory.fairness import completeness, fairness_bounds
    from fedworth.valuation.value import value

    matrix, completion = load_utilities(args.truth, is_truth=True), load_completion(args.completion)
    columns = needed_columns(matrix)
    columns = columns[columns.any(axis=1)]
    delta = completeness(_full(matrix), completion.estimates(columns))
    bounds = fairness_bounds(delta, matrix.n_clients)
    values = value(matrix.seen_part(), "comfedsv", completion=completion).values
    row = {
        "value_error": float(np.nanmax(np.abs(values - value(matrix, "truth").values))),
        "value_error_bound": bounds.value_error,
        **_gaps(matrix, values),
        "symmetry_bound": bounds.symmetry,
        "zero_element_bound": bounds.zero_element,
        "additivity_bound": bounds.additivity,
    }
    _show("Theorem 1", {"delta": delta}, [row], args)


def _gaps(matrix: "UtilityMatrix", values: "NDArray[np.float64]") -> dict[str, float]:
    """How far apart the values of equal clients are, and how far from 0 those of null clients; where all is known."""
    import numpy as np

    from fedworth.coalitions import coalitions_of
    from fedworth.theory.fairness import fairness_report
    from fedworth.valuation.fedsv import seen_row

    if matrix.permutations is not None or not matrix.heard.all():
        return {}
    everyone = coalitions_of(np.arange(matrix.n_clients), matrix.n_clients)
    utilities = np.sum([seen_row(matrix, t, everyone) for t in range(matrix.n_rounds)], axis=0)  # (2^n_clients,)
    found = fairness_report(utilities, values)
    return {"symmetry_gap": found.symmetry_gap, "zero_element_gap": found.zero_element_gap}


def _full(matrix: "UtilityMatrix") -> "NDArray[np.float64]":
    """(n_rounds, n_coalitions): all cells that values rest on, every one known; the empty coalition left out."""
    import numpy as np

    from fedworth.games.matrix import needed_columns
    from fedworth.valuation.fedsv import seen_row

    columns = needed_columns(matrix)
    columns = columns[columns.any(axis=1)]
    return np.stack([seen_row(matrix, t, columns) for t in range(matrix.n_rounds)])


def _measured(folder: Path) -> dict[str, Any]:
    """What Proposition 1 asks of a run: how far the global model moved, and the learning rates."""
    import numpy as np

    from fedworth.ledger.ledger import open_ledger
    from fedworth.simulation.simulate import simulation_of
    from fedworth.theory.rank_bounds import path_length

    ledger = open_ledger(folder)
    rates = simulation_of(ledger).learning_rate()
    flat = [np.concatenate([p.double().numpy().ravel() for p in r.global_model.values()]) for r in ledger.rounds()]
    return {
        "path_length": path_length(np.stack(flat)),
        "eta_first": rates.at(0),
        "eta_last": rates.at(ledger.n_rounds - 1),
        "n_rounds": ledger.n_rounds,
        "n_clients": len(ledger.clients),
    }


def _show(statement: str, given: dict[str, Any], rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    if args.json:
        show_json({"statement": statement, **given, "rows": rows})
        return
    from fedworth.report.tables import Table

    said = ", ".join(f"{key.replace('_', ' ')} {item:g}" for key, item in given.items())
    cells = tuple(tuple(f"{item:.6g}" for item in row.values()) for row in rows)
    headings = tuple(key.replace("_", " ") for key in rows[0])
    show_table(Table(f"{statement}: {said}", headings, cells, words=WORDS[statement]))
