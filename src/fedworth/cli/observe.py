"""fedworth observe: measure what coalitions would have achieved."""

import argparse
from pathlib import Path

from fedworth.arrays import stream
from fedworth.cli.options import add_data_option, add_permutations_option, add_seed_option, command, permutations_of
from fedworth.cli.show import progress_bars, show_json, show_lines
from fedworth.storage import refuse_existing
from fedworth.utility.files import save_utilities


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "observe",
        "Measure the utilities of coalitions of a recorded federation.",
        "fedworth observe ledger --out utilities.npz",
        run,
    )
    parser.add_argument("ledger", type=Path, help="the ledger of a federation")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the utilities to write (.npz)")
    parser.add_argument(
        "--truth", action="store_true", help="measure all clients in all rounds, with models kept apart"
    )
    parser.add_argument("--weighting", default="uniform", help="uniform (default), samples, fixed")
    parser.add_argument("--measure", default="loss", help="loss (default) or accuracy")
    add_permutations_option(parser)
    add_data_option(parser)
    add_seed_option(parser)


def run(args: argparse.Namespace) -> None:
    """Observe, and say how many cells were measured."""
    from fedworth.federation.fedavg import task_of
    from fedworth.federation.ledger import open_ledger
    from fedworth.utility.observe import observe, participation
    from fedworth.utility.oracle import LoopOracle
    from fedworth.utility.plan import plan_prefixes, plan_subsets

    refuse_existing(args.out, "a file of utilities")
    ledger = open_ledger(args.ledger)
    participants = participation(ledger)
    monte_carlo, count = permutations_of(args)
    if monte_carlo:
        rng = stream(args.seed, "permutations")
        plan = plan_prefixes(participants, n_permutations=count, with_truth=args.truth, rng=rng)
    else:
        plan = plan_subsets(participants, with_truth=args.truth)
    oracle = LoopOracle(task_of(ledger, data_folder=args.data), args.measure)
    with progress_bars() as progress:
        matrix = observe(ledger, oracle, plan, weighting=args.weighting, progress=progress)
    save_utilities(matrix, args.out)
    if args.json:
        show_json(
            {
                "utilities": str(args.out),
                "n_evaluations": plan.n_evaluations,
                "n_cells": len(matrix.utilities),
                "n_rounds": matrix.n_rounds,
                "n_coalitions": len(matrix.coalitions),
            }
        )
    else:
        show_lines(
            [
                f"{args.out}: {plan.n_evaluations:,} utilities measured in {matrix.n_rounds} rounds",
                f"next: fedworth value {args.out} --method comfedsv",
            ]
        )
