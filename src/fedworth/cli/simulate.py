"""fedworth simulate: train a federation and write its ledger."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import add_data_option, command, is_whole, name, numbers, real, whole, whole_number
from fedworth.cli.show import progress_bars, show_json, show_lines, warn
from fedworth.errors import UsageError

if TYPE_CHECKING:
    from fedworth.simulation.settings import SimulationSettings


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "simulate",
        "Train a federation with federated averaging and record it in a ledger.",
        "fedworth simulate --dataset digits --clients 10 --copy 9=0 --participants 3 --rounds 10 --out ledger",
        run,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the ledger to write")
    parser.add_argument("--resume", action="store_true", help="go on with a ledger that a killed run left")
    add_simulation_options(parser)


def add_simulation_options(parser: argparse.ArgumentParser) -> None:
    """Every setting of a simulated federation."""
    data = parser.add_argument_group("data")
    add_data_option(parser)
    data.add_argument(
        "--dataset",
        type=name("data set"),
        default="digits",
        help="synthetic, synthetic-iid, digits (default), mnist, fashion-mnist, cifar10",
    )
    data.add_argument("--alpha", type=real, default=1.0, help="α of synthetic data (default 1)")
    data.add_argument("--beta", type=real, default=1.0, help="β of synthetic data (default 1)")
    data.add_argument("--train-limit", type=whole, metavar="N", help="at most N training samples in all")
    data.add_argument("--test-limit", type=whole, metavar="N", help="at most N test samples")
    data.add_argument(
        "--partition",
        type=name("partition"),
        default="two-class",
        help="iid, two-class (default), natural (synthetic data's own)",
    )
    data.add_argument("--clients", type=whole, default=10, metavar="N", help="how many clients (default 10)")
    data.add_argument(
        "--copy",
        action="append",
        metavar="I=J",
        help="client I has the data of client J (default, and none: no copies)",
    )
    data.add_argument(
        "--noise", metavar="SHARES", help="share of noisy samples of each client, or step:S for S·i of client i"
    )
    data.add_argument(
        "--noise-strength", type=real, default=1.0, metavar="X", help="noise in standard deviations of the features"
    )
    data.add_argument(
        "--flips", metavar="SHARES", help="share of flipped labels of each client, or step:S for S·i of client i"
    )
    model = parser.add_argument_group("model and training")
    model.add_argument(
        "--model", type=name("model"), default="logistic", help="logistic (default), mlp, cnn, vgg16, vgg16-bn"
    )
    model.add_argument(
        "--hidden", metavar="WIDTHS", help="widths of hidden layers, e.g. 200,200 (default 200, for mlp)"
    )
    model.add_argument("--width-divisor", type=whole, default=1, metavar="D", help="divide the widths of vgg16 by D")
    model.add_argument("--dtype", type=name("dtype"), default="float32", help="float32 (default) or float64")
    model.add_argument("--rounds", type=whole, default=10, metavar="T", help="how many rounds (default 10)")
    model.add_argument("--participants", type=whole, default=3, metavar="K", help="clients a round (default 3)")
    model.add_argument("--not-everyone-heard", action="store_true", help="do not hear everyone in the first round")
    amount = model.add_mutually_exclusive_group()
    amount.add_argument("--local-steps", type=whole, metavar="N", help="local steps a round (default 5)")
    amount.add_argument("--local-epochs", type=whole, metavar="N", help="local epochs a round")
    model.add_argument("--batch-size", type=whole, metavar="B", help="samples a step (default: all)")
    model.add_argument("--rate", type=real, default=0.5, metavar="η", help="learning rate (default 0.5)")
    model.add_argument(
        "--schedule",
        type=name("learning-rate schedule"),
        default="constant",
        help="constant (default), decay, proposition-2, proposition-2-li",
    )
    model.add_argument("--decay", type=real, default=0.0, metavar="D", help="η/(1 + D·t) with schedule decay")
    model.add_argument("--convexity", type=real, default=0.0, metavar="μ", help="for proposition-2 schedules")
    model.add_argument("--smoothness", type=real, default=0.0, metavar="L₂", help="for proposition-2 schedules")
    model.add_argument(
        "--aggregation", type=name("aggregation"), default="uniform", help="uniform (default) or samples"
    )
    model.add_argument(
        "--no-truth", action="store_true", help="do not train absent clients: the truth will not be known"
    )
    parser.add_argument("--seed", type=whole, default=0, help="seed of everything drawn (default 0)")


def simulation_settings(args: argparse.Namespace) -> "SimulationSettings":
    """The settings that the options ask for."""
    from fedworth.simulation.settings import SimulationSettings

    return SimulationSettings(
        dataset=args.dataset,
        alpha=args.alpha,
        beta=args.beta,
        train_limit=args.train_limit,
        test_limit=args.test_limit,
        partition=args.partition,
        n_clients=args.clients,
        copies=_copies(args.copy or []),
        noise_shares=_shares(args.noise, args.clients),
        noise_strength=args.noise_strength,
        flip_shares=_shares(args.flips, args.clients),
        model=args.model,
        hidden=_widths(args.hidden),
        width_divisor=args.width_divisor,
        dtype=args.dtype,
        n_rounds=args.rounds,
        n_participants=args.participants,
        everyone_heard=not args.not_everyone_heard,
        n_steps=None if args.local_epochs is not None else args.local_steps or 5,
        n_epochs=args.local_epochs,
        batch_size=args.batch_size,
        schedule=args.schedule,
        rate=args.rate,
        decay=args.decay,
        convexity=args.convexity,
        smoothness=args.smoothness,
        aggregation=args.aggregation,
        with_truth=not args.no_truth,
        seed=args.seed,
    )


def run(args: argparse.Namespace) -> None:
    """Simulate, and say what was written."""
    settings = simulation_settings(args)
    from fedworth.pipeline.report_on import UNHEARD
    from fedworth.simulation.simulate import simulate

    with progress_bars() as progress:
        ledger = simulate(settings, args.out, data_folder=args.data, resume=args.resume, progress=progress)
    warn([] if settings.everyone_heard else [UNHEARD])
    if args.json:
        show_json({"ledger": str(ledger.folder), "clients": list(ledger.clients), "n_rounds": ledger.n_rounds})
    else:
        show_lines(
            [
                f"{ledger.folder}: {ledger.n_rounds} rounds of {len(ledger.clients)} clients",
                f"next: fedworth observe {ledger.folder} --out utilities.npz",
            ]
        )


def _copies(given: list[str]) -> tuple[tuple[int, int], ...]:
    pairs = []
    for text in given:
        if text == "none":
            continue
        copy, _, source = text.partition("=")
        if not (is_whole(copy) and is_whole(source)):
            raise UsageError(f"--copy {text[:40]}: expected I=J, two client numbers, or none")
        pairs.append((int(copy), int(source)))
    return tuple(pairs)


def _shares(given: str | None, n_clients: int) -> tuple[float, ...]:
    from fedworth.simulation.settings import MOST_CLIENTS

    if given is None:
        return ()
    if not given.startswith("step:"):
        return numbers(given)
    steps = numbers(given.removeprefix("step:"))
    if len(steps) != 1 or n_clients > MOST_CLIENTS:
        raise UsageError(f"{given[:80]!r} of {n_clients} clients: expected one step, and {MOST_CLIENTS:,} at most")
    return tuple(steps[0] * k for k in range(n_clients))


def _widths(given: str | None) -> tuple[int, ...]:
    return () if given is None else tuple(whole_number(text, "--hidden", least=1) for text in given.split(",") if text)
