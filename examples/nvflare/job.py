"""Three sites in NVFlare's simulator; one line records the federation.

python job.py --ledger ~/sites.ledger
fedworth observe ~/sites.ledger --task task.py:task --out utilities.npz
"""

import argparse
import tempfile
from pathlib import Path

from dropping import DroppingFedAvg
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner

import fedworth.nvflare
from task import build

N_SITES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--diff", action="store_true", help="sites send what they changed instead of their model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drop", action="store_true", help="stop asking sites that do harm")
    parser.add_argument("--wrong", default="", metavar="SITE", help="a site whose labels are all one too high")
    args = parser.parse_args()
    here = Path(__file__).parent
    start = {name: tensor.tolist() for name, tensor in build().state_dict().items()}
    job = FedJob(name="digits", min_clients=N_SITES)
    make = DroppingFedAvg if args.drop else fedworth.nvflare.EveryoneHeardFedAvg
    job.to_server(make(num_clients=2, num_rounds=args.rounds, persistor_id="", model=start))
    job.to_server(str(here / "task.py"))
    fedworth.nvflare.record(job, ledger=args.ledger)
    runner = ScriptRunner(
        script=str(here / "client.py"),
        script_args=f"--n-sites {N_SITES} --wrong={args.wrong}" + (" --diff" if args.diff else ""),
        framework=FrameworkType.NUMPY,
    )
    job.to_clients(runner)
    job.to_clients(str(here / "task.py"))
    with tempfile.TemporaryDirectory(prefix="fedworth-nvflare-", ignore_cleanup_errors=True) as workspace:
        job.simulator_run(workspace, n_clients=N_SITES, threads=N_SITES)


if __name__ == "__main__":
    main()
