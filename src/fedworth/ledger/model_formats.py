"""Models in files of other programs: safetensors, `.pt` of torch.save, `.npz` of NumPy.

Only tensors are read of a `.pt` and only arrays of an `.npz`: a file that asks for more, such as code, is refused.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedworth.errors import ArtefactError, DataError
from fedworth.ledger.model import Model
from fedworth.storage import read_npz

SUFFIXES = (".safetensors", ".pt", ".pth", ".npz")
NESTED = ("state_dict", "model_state_dict")
"""Where trainers keep a model's state dict beside the optimizer's."""

TREE_FILES = (".ubj", ".bst", ".xgb", ".model", ".cbm", ".lgb", ".json")
LISTS_MODELS = ", ".join(SUFFIXES)


def read_model(path: Path) -> Model:
    """The model in a file, by the file's suffix."""
    read = {".safetensors": _from_safetensors, ".npz": _from_npz}.get(path.suffix, _from_torch)
    return read(path)


def refuse_other_formats(place: Path) -> None:
    """Refuse a folder with files that are no models: a client left out without a word would be worth nothing."""
    for path in sorted(place.iterdir()):
        if path.is_dir() or path.suffix in SUFFIXES or path.name.startswith("."):
            continue
        if path.suffix in TREE_FILES:
            raise DataError(
                f"{path}: expected a model of {LISTS_MODELS}; if it holds trees (XGBoost, LightGBM), they cannot be "
                "valued: a coalition's model is the mean of its members' models, and the mean of two trees is no tree"
            )
        raise DataError(f"{path}: expected a model of {LISTS_MODELS}; convert it, or move it elsewhere")


def _from_safetensors(path: Path) -> Model:
    try:
        model: Model = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as safetensors ({error})") from error
    return model


def _from_torch(path: Path) -> Model:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch trips over in a file that it did not write
        reason = str(error).strip().partition("\n")[0][:120]
        raise DataError(
            f"{path}: not readable as tensors alone ({reason}); save the state dict: torch.save(module.state_dict(), …)"
        ) from error
    for name in NESTED:
        found = found[name] if isinstance(found, dict) and isinstance(found.get(name), dict) else found
    if not isinstance(found, dict) or not all(isinstance(t, torch.Tensor) for t in found.values()):
        raise DataError(f"{path}: holds a {type(found).__name__}, expected a state dict: tensors by name")
    return {str(name): tensor.detach().contiguous() for name, tensor in found.items()}


def _from_npz(path: Path) -> Model:
    """`arr_0`, `arr_1`, … of unnamed arrays become 0, 1, …, as lists of arrays are named everywhere."""
    try:
        found = {name.removeprefix("arr_"): np.array(array) for name, array in read_npz(path).items()}
        return {name: torch.from_numpy(array) for name, array in found.items()}
    except (ArtefactError, TypeError) as error:
        raise DataError(f"{path}: not readable as arrays of numbers ({error})") from error
