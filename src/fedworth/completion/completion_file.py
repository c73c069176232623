"""A completion on disk, of whatever kind: the file says which.

What reads a completion by models is loaded when one is met: it needs torch, and factors do not.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from fedworth.completion.completion import Completion, FactorCompletion, factors_from, save_factors
from fedworth.errors import ArtefactError, UsageError
from fedworth.storage import Place, read_npz

if TYPE_CHECKING:
    from fedworth.completion.models import ModelCompletion

Loaded: TypeAlias = "FactorCompletion | ModelCompletion"


READERS: dict[str, Callable[[dict[str, NDArray[Any]]], FactorCompletion]] = {
    "factors": factors_from,
}
"""By the kind that the file names; those that need no torch."""


def save_completion(completion: Completion, path: Place) -> None:
    """Write a completion, whole or not at all.

    Args:
        completion: What to write.
        path: An `.npz` file.

    Example:
        fedworth.save_completion(completion, "completion.npz")
    """
    if isinstance(completion, FactorCompletion):
        save_factors(completion, path)
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
        if kind in READERS:
            return READERS[kind](arrays)
        from fedworth.completion.models import model_completion_from

        if kind != "models":
            raise ValueError(f"kind {kind[:40]!r}, expected one of {', '.join([*READERS, 'models'])}")
        return model_completion_from(arrays)
    except (KeyError, ValueError, TypeError, UsageError) as error:
        raise ArtefactError(f"{path}: not a completion ({error})") from error


def load_factors(path: Place) -> FactorCompletion:
    """The completion at `path`, which must be one by factors."""
    found = load_completion(path)
    if not isinstance(found, FactorCompletion):
        raise ArtefactError(f"{path}: a completion by {found.summary()['kind']}, expected one by factors")
    return found
