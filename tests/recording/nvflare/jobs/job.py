"""Three sites in NVFlare's simulator: ScatterAndGather, with an aggregator of one's own too, SCAFFOLD, or a recipe."""

import argparse
import tempfile
from pathlib import Path

from drawn import Drawn, First, Middle  # type: ignore[import-not-found]
from nvflare.apis.dxo import DataKind
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.client.config import TransferType
from nvflare.job_config.api import FedJob
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import add_experiment_tracking

import fedworth.nvflare

N_SITES, N_ROUNDS = 3, 2
WEIGHTS = {"site-1": 2.5}
HERE = Path(__file__).parent


def scatter_and_gather(diff: bool, aggregator: Aggregator | None = None) -> FedJob:
    job = FedJob(name="gather", min_clients=2)
    kind = DataKind.WEIGHT_DIFF if diff else DataKind.WEIGHTS
    parts = {
        "aggregator": aggregator
        or InTimeAccumulateWeightedAggregator(expected_data_kind=kind, aggregation_weights=dict(WEIGHTS)),
        "shareable_generator": FullModelShareableGenerator(),
        "persistor": First(),
    }
    for name, part in parts.items():
        job.to_server(part, id=name)
    # a site that is a little late is waited for: on a busy machine one of the three may be
    options = {"wait_time_after_min_received": 5, "task_check_period": 0.05, "persistor_id": "persistor"}
    job.to_server(ScatterAndGather(min_clients=2, num_rounds=N_ROUNDS, **options))
    job.to_clients(Drawn(fails="" if aggregator else "site-2", diff=diff), tasks=["train"])
    return job


def scaffold(diff: bool) -> FedJob:
    job = FedJob(name="scaffold", min_clients=N_SITES)
    job.to_server(First(), id="persistor")
    job.to_server(Scaffold(num_clients=N_SITES, num_rounds=N_ROUNDS, persistor_id="persistor"))
    job.to_clients(Drawn(diff=diff), tasks=["train"])
    return job


def recipe(diff: bool) -> NumpyFedAvgRecipe:
    return NumpyFedAvgRecipe(
        name="recipe",
        model=[[0.5, -0.5, 1.0], [0.0, 1.0, 2.0]],
        min_clients=N_SITES,
        num_rounds=N_ROUNDS,
        train_script=str(HERE / "script.py"),
        params_transfer_type=TransferType.DIFF if diff else TransferType.FULL,
        aggregation_weights=dict(WEIGHTS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workflow", choices=["scatter-and-gather", "own-aggregator", "scaffold", "recipe"])
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--diff", action="store_true")
    parser.add_argument("--workspace", help="keep the workspace here, and value the recipe's sites")
    args = parser.parse_args()
    made = {
        "recipe": recipe,
        "scaffold": scaffold,
        "scatter-and-gather": scatter_and_gather,
        "own-aggregator": lambda diff: scatter_and_gather(diff, Middle()),
    }
    job = made[args.workflow](args.diff)
    if args.workspace:
        add_experiment_tracking(job, "tensorboard")
        fedworth.nvflare.add_valuation(job, ledger=args.ledger, task=f"{HERE}/valued.py:task")
        job.run(SimEnv(num_clients=N_SITES, workspace_root=args.workspace))
        return
    fedworth.nvflare.record(job, ledger=args.ledger)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as workspace:
        if args.workflow == "recipe":
            job.run(SimEnv(num_clients=N_SITES, workspace_root=workspace))
        else:
            job.simulator_run(workspace, n_clients=N_SITES, threads=N_SITES)


if __name__ == "__main__":
    main()
