"""Ray's tests run where Ray is installed, on this machine alone."""

import importlib.util
import os

collect_ignore_glob = [] if importlib.util.find_spec("ray") else ["test_*.py"]
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when ray is imported
