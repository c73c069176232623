"""The trackers' tests run where the trackers are installed, and nothing of them leaves the machine."""

import importlib.util
import os
import warnings

PACKAGES = ("mlflow", "wandb", "tensorboard")
collect_ignore_glob = [] if all(map(importlib.util.find_spec, PACKAGES)) else ["test_*.py"]
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}

if not collect_ignore_glob:
    with warnings.catch_warnings(action="ignore"):  # what their own dependencies warn of is not ours to mend
        for package in (*PACKAGES, "torch.utils.tensorboard"):
            importlib.import_module(package)
