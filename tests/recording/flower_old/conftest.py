"""Flower's old API, in the oldest version that is supported and in the newest; nothing of it calls home."""

import importlib.util
import os
import warnings

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

if importlib.util.find_spec("flwr"):
    with warnings.catch_warnings(action="ignore"):  # what Flower's own dependencies warn of is not ours to mend
        importlib.import_module("flwr.server.strategy")
        importlib.import_module("flwr.client")
