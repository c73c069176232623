"""fedworth observe: measure what coalitions would have achieved."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import add_data_option, add_seed_option, check_plan, command, name, plan_settings, real, whole
from fedworth.cli.show import progress_bars, show_json, show_lines, warn
from fedworth.cli.valuing import add_measuring_options, add_without_option
from fedworth.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedworth.games.matrix import UtilityMatrix
    from fedworth.games.observe import Observed
    from fedworth.games.planning.budget import Budget
    from fedworth.games.planning.choose import PlanSettings
    from fedworth.games.planning.plan import Plan
    from fedworth.oracle.oracle import Oracle
    from fedworth.valuation.stopping import StoppingRule


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
    parser.add_argument("--task", metavar="FILE:NAME", help="model and test set, such as mytask.py:task")
    add_measuring_options(parser)
    add_without_option(parser)
    parser.add_argument("--no-fedsv", action="store_true", help="with --permutations: leave out what only FedSV needs")
    add_data_option(parser)
    add_seed_option(parser)
    _add_work_options(parser)


def _add_work_options(parser: argparse.ArgumentParser) -> None:
    """How much to measure, by what, and where."""
    group = parser.add_argument_group("work")
    group.add_argument("--budget", type=whole, metavar="N", help="most evaluations; what is known already is free")
    group.add_argument("--seconds", type=real, metavar="S", help="most seconds; the best answer so far is written")
    group.add_argument(
        "--until-error",
        type=real,
        metavar="SHARE",
        help="with --permutations: stop once every standard error of ComFedSV is within SHARE of the largest value",
    )
    group.add_argument(
        "--until-ranked", action="store_true", help="with --permutations: stop once ComFedSV's ranking is settled"
    )
    group.add_argument(
        "--test-samples", type=whole, metavar="N", help="judge on N test samples, every class in proportion"
    )
    group.add_argument("--threads", type=whole, metavar="N", help="of the fast oracle (default: one a processor)")
    group.add_argument("--device", default="cpu", help="where coalitions are evaluated: cpu (default), cuda, cuda:1 …")
    group.add_argument(
        "--engine", type=name("engine"), default="local", help="local (default), or ray: the workers of a Ray cluster"
    )
    group.add_argument("--address", metavar="HOST:PORT", help="a Ray cluster (default: one on this machine)")
    group.add_argument("--no-cache", action="store_true", help="neither use nor keep utilities beside the ledger")


def run(args: argparse.Namespace) -> None:
    """Observe, and say how many cells were measured."""
    _refuse_contradictions(args)
    from fedworth.arrays import stream
    from fedworth.games.matrix_file import save_utilities
    from fedworth.games.observe import observe_and_count
    from fedworth.games.planning.budget import Budget
    from fedworth.games.planning.choose import choose_plan
    from fedworth.games.subset import stratified_subset
    from fedworth.ledger.ledger import open_ledger
    from fedworth.oracle.cache import utility_cache
    from fedworth.oracle.choices import device_named, engine_named, oracle_named
    from fedworth.oracle.weighting import participation
    from fedworth.simulation.simulate import task_for
    from fedworth.storage import refuse_no_place

    refuse_no_place(args.out, "a file of utilities")
    rule, asked = _rule(args), plan_settings(args, with_fedsv=not args.no_fedsv)
    budget, engine, device = (
        Budget(args.budget, args.seconds),
        engine_named(args.engine, args.address),
        device_named(args.device),
    )
    ledger = open_ledger(args.ledger).without(args.without)

    def plan_of(settings: "PlanSettings") -> "Plan":
        return choose_plan(participation(ledger), settings, with_truth=args.truth, seed=args.seed)

    plan = plan_of(asked)
    task = task_for(ledger, args.task, data_folder=args.data)
    if args.test_samples is not None:
        task = stratified_subset(task, args.test_samples, rng=stream(args.seed, "test samples"))
    oracle = oracle_named(args.oracle, task.to(device), args.measure, n_threads=args.threads)
    with progress_bars() as progress:

        def measured(plan: "Plan", budget: Budget) -> "Observed":
            return observe_and_count(
                ledger,
                oracle,
                plan,
                weighting=args.weighting,
                engine=engine,
                cache=None if args.no_cache else utility_cache(ledger, oracle),
                budget=budget,
                as_average=args.as_average,
                progress=progress,
            )

        if rule is None:
            observed, ending = measured(plan, budget), ""
        else:
            observed, ending = _until(
                rule, plan, lambda count: plan_of(replace(asked, permutations=count)), measured, budget
            )
    save_utilities(observed.matrix, args.out)
    warn(observed.matrix.notes)
    _show(args, observed, ending, _routes(oracle))


def _refuse_contradictions(args: argparse.Namespace) -> None:
    """Options that do not go together: Ray's workers have a thread and a processor each, rules build on the cache."""
    if args.engine == "ray" and args.threads is not None:
        raise UsageError(f"--threads {args.threads} is for --engine local; a Ray worker has one, leave it out")
    if args.engine == "ray" and args.device != "cpu":
        raise UsageError(f"--device {args.device} is for --engine local; Ray's workers evaluate on the CPU")
    if args.permutations is None and (args.until_error is not None or args.until_ranked):
        raise UsageError("--until-error and --until-ranked: expected --permutations M beside them, the most to measure")
    if args.no_cache and (args.until_error is not None or args.until_ranked):
        raise UsageError("--until-error and --until-ranked build on the cache; leave out --no-cache")
    check_plan(args, with_fedsv=not args.no_fedsv)


def _routes(oracle: "Oracle") -> str | None:
    """How the fast oracle went about it; nothing for the loop, or if nothing was measured in this process."""
    from fedworth.oracle.fast import NOTHING_YET, FastOracle

    routes = oracle.describe() if isinstance(oracle, FastOracle) else NOTHING_YET
    return None if routes == NOTHING_YET else routes


def _rule(args: argparse.Namespace) -> "StoppingRule | None":
    """When to stop before all permutations are measured; none: never."""
    from fedworth.valuation.stopping import all_of, precise_relative, ranked

    rules = [] if args.until_error is None else [precise_relative(args.until_error)]
    rules += [ranked()] if args.until_ranked else []
    return all_of(*rules) if rules else None


def _until(
    rule: "StoppingRule",
    longest: "Plan",
    plan_of: "Callable[[int], Plan]",
    measured: "Callable[[Plan, Budget], Observed]",
    budget: "Budget",
) -> "tuple[Observed, str]":
    """Observe more and more permutations until the rule holds; and a sentence that says why it ended."""
    from fedworth.games.observe import Observed
    from fedworth.valuation.settling import measure_until

    assert longest.permutations is not None
    found: list[Observed] = []
    started = budget.clock()

    def measure(count: int) -> "UtilityMatrix":
        n_spent = sum(observed.n_evaluations for observed in found)
        found.append(measured(plan_of(count), budget.after(n_spent, budget.clock() - started)))
        return found[-1].matrix

    most, n_clients = longest.permutations.shape
    settled = measure_until(measure, rule, most=most, n_clients=n_clients)
    n_evaluations = sum(observed.n_evaluations for observed in found)
    reasons = "; ".join(settled.reasons)
    ending = f"{settled.n_permutations:,} of {len(longest.permutations):,} permutations: {reasons}"
    return Observed(settled.matrix, n_evaluations, found[-1].status), ending


def _show(args: argparse.Namespace, observed: "Observed", ending: str, routes: str | None) -> None:
    matrix = observed.matrix
    n_cells = len(matrix.utilities) - matrix.n_rounds  # the empty coalition's are known
    if args.json:
        show_json(
            {
                "utilities": str(args.out),
                "status": str(observed.status),
                "ended": ending or None,
                "routes": routes,
                "n_evaluations": observed.n_evaluations,
                "n_known": n_cells - observed.n_evaluations,
                "n_cells": len(matrix.utilities),
                "n_rounds": matrix.n_rounds,
                "n_coalitions": len(matrix.coalitions),
            }
        )
        return
    known = n_cells - observed.n_evaluations
    beside = f", {known:,} known from before" if known else ""
    show_lines(
        [
            f"{args.out}: {observed.n_evaluations:,} utilities measured in {matrix.n_rounds} rounds{beside}",
            *([ending] if ending else []),
            f"next: fedworth value {args.out} --method comfedsv",
        ]
    )
