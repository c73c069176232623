"""Flower's tests run where Flower is installed, and nothing of them calls home."""

import importlib.util
import os
import sys
import warnings
from pathlib import Path

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "flower"))

if importlib.util.find_spec("flwr"):
    with warnings.catch_warnings(action="ignore"):  # what Flower's own dependencies warn of is not ours to mend
        importlib.import_module("flwr.serverapp.strategy")
        importlib.import_module("flwr.clientapp")
