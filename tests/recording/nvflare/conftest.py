"""NVFlare's tests run where NVFlare is installed."""

import importlib.util
import sys
import warnings
from pathlib import Path

collect_ignore_glob = [] if importlib.util.find_spec("nvflare") else ["test_*.py"]
EXAMPLE = Path(__file__).parents[3] / "examples" / "nvflare"
sys.path.insert(0, str(EXAMPLE))

if importlib.util.find_spec("nvflare"):
    with warnings.catch_warnings(action="ignore"):  # what NVFlare's own dependencies warn of is not ours to mend
        importlib.import_module("nvflare.app_common.workflows.fedavg")
        importlib.import_module("nvflare.job_config.api")
