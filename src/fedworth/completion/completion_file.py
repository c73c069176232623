"""Completions on disk: an .npz file that names its kind.

What reads a completion by models is imported when one is met: it needs torch, and factors do not.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedworth.completion.completion import Completion
from fedworth.completion.factors import Alternatives, FactorCompletion
from fedworth.completion.solver import Status
from fedworth.errors import ArtefactError, UsageError
from fedworth.storage import Place, read_npz, write_npz
from fedworth.trail import trail_array, trail_in

if TYPE_CHECKING:
    from fedworth.completion.models import ModelCompletion

Loaded: TypeAlias = "FactorCompletion | ModelCompletion"

PLAIN = tuple(f.name for f in fields(FactorCompletion) if f.name not in ("clients", "status", "alternatives", "trail"))
OPTIONAL = ("block_factors", "permutations")  # left out where there are none
OTHERS = tuple(f.name for f in fields(Alternatives))


def save_completion(completion: Completion, path: Place) -> None:
    """Write a completion, whole or not at all.

    Args:
        completion: What to write.
        path: An `.npz` file.

    Example:
        fedworth.save_completion(completion, "completion.npz")
    """
    if isinstance(completion, FactorCompletion):
        write_npz(path, _factor_arrays(completion))
        return
    from fedworth.completion.models import ModelCompletion, save_model_completion

    if not isinstance(completion, ModelCompletion):
        raise ArtefactError(f"{path}: there is no file for a completion of type {type(completion).__name__}")
    save_model_completion(completion, path)


def load_completion(path: Place) -> Loaded:
    """The completion at `path`.

    Args:
        path: What `save_completion` or a run wrote.

    Returns:
        The completion, whichever kind it is.

    Example:
        completion = fedworth.load_completion("completion.npz")
    """
    arrays = read_npz(path)
    try:
        kind = str(arrays.get("kind", "factors"))
        if kind == "factors":
            return _factors_from(arrays)
        if kind != "models":
            raise ValueError(f"kind {kind[:40]!r}, expected factors or models")
        from fedworth.completion.models import model_completion_from

        return model_completion_from(arrays)
    except (AttributeError, KeyError, ValueError, TypeError, UsageError) as error:
        raise ArtefactError(f"{path}: not a completion ({error})") from error


def load_factors(path: Place) -> FactorCompletion:
    """The completion at `path`, which must be one by factors."""
    found = load_completion(path)
    if not isinstance(found, FactorCompletion):
        raise ArtefactError(f"{path}: a completion by {found.summary()['kind']}, expected one by factors")
    return found


def _factor_arrays(completion: FactorCompletion) -> dict[str, NDArray[Any]]:
    others = completion.alternatives
    plain = {name: getattr(completion, name) for name in PLAIN}
    return {
        "kind": np.array("factors"),
        "clients": np.array(completion.clients, dtype=np.str_),
        "status": np.array(str(completion.status)),
        **{name: np.asarray(value) for name, value in plain.items() if value is not None},
        **({} if others is None else {f"other_{name}": getattr(others, name) for name in OTHERS}),
        **trail_array(completion.trail),
    }


def _factors_from(arrays: dict[str, NDArray[Any]]) -> FactorCompletion:
    found: dict[str, Any] = {name: arrays[name] for name in PLAIN if name in arrays or name not in OPTIONAL}
    plain = {name: array.item() if array.ndim == 0 else array for name, array in found.items()}
    has_others = "other_weights" in arrays
    return FactorCompletion(
        clients=tuple(str(name) for name in arrays["clients"]),
        status=Status(str(arrays["status"])),
        alternatives=Alternatives(*(arrays[f"other_{name}"] for name in OTHERS)) if has_others else None,
        trail=trail_in(arrays),
        **plain,
    )
