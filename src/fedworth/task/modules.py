"""Copies of modules, and modules for models that are no torch modules: scikit-learn's linear models, user functions."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from fedworth.errors import UsageError, UtilityError
from fedworth.task.losses import UserFunction, name_of

Module = TypeVar("Module", bound=nn.Module)
Like = Mapping[str, Any] | Sequence[Any]
"""A model in the form that a user's function wants: arrays or tensors by name, or a list of arrays."""


def copied(module: Module) -> Module:
    """A copy of a module with tensors of its own.

    `torch.nn.utils.weight_norm` and `prune` keep a weight that is computed from parameters before every forward pass.
    PyTorch refuses to copy such a tensor with its autograd history, so it is copied without.
    """
    kept = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    computed = {id(tensor): tensor.detach().clone() for tensor in kept if not tensor.is_leaf}
    return copy.deepcopy(module, computed)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[nn.Module]:
    """The module in evaluation mode; afterwards every part is in the mode in which it was."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield module
    finally:
        for part in training:
            part.training = True


def refuse_uninitialised(module: nn.Module) -> None:
    """Refuse a module with lazy layers whose shapes are not known yet."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise UsageError(
                f"module: {name!r} of a lazy layer has no shape yet, so no model can be loaded; call the module "
                "once on some inputs before you give it to the task"
            )


def tied_names(module: nn.Module) -> list[list[str]]:
    """Groups of names under which a module has the same tensor, each in the order of its state."""
    groups: dict[int, list[str]] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        groups.setdefault(id(tensor), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


class Linear(nn.Module):
    """x coefᵀ + intercept, in the shapes and under the names of scikit-learn's linear models."""

    def __init__(self, coef: torch.Tensor, intercept: torch.Tensor | None, names: tuple[str, str]) -> None:
        super().__init__()
        self.names = names
        self.register_parameter(names[0], nn.Parameter(coef, requires_grad=False))
        if intercept is not None:
            self.register_parameter(names[1], nn.Parameter(intercept, requires_grad=False))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(n_samples, n_outputs), or (n_samples,) for coefficients without rows."""
        coef: torch.Tensor = getattr(self, self.names[0])
        outputs: torch.Tensor = rows @ (coef.t() if coef.ndim == 2 else coef) + getattr(self, self.names[1], 0.0)
        return outputs


def linear_from_estimator(estimator: Any, names: tuple[str, str]) -> Linear:
    """A scikit-learn estimator's coefficients as a module."""
    kind = type(estimator).__name__
    if not hasattr(estimator, "coef_"):
        raise UsageError(
            f"{kind} has no coef_: if it is a linear model, fit it, or set coef_ and intercept_ to arrays of the "
            "federation's shapes; other models, such as trees, cannot be averaged, but such a federation can be valued "
            "from utilities that you measure (fedworth value FILE.npz)"
        )
    coef = torch.as_tensor(np.asarray(estimator.coef_))
    intercept = None  # fit_intercept=False leaves a bare 0, which nobody exchanges
    if getattr(estimator, "fit_intercept", True):
        intercept = torch.as_tensor(np.asarray(estimator.intercept_)).to(coef.dtype).clone()
    return Linear(coef.clone(), intercept, names)


def loss_of_estimator(estimator: Any) -> str:
    """The name of the loss that a scikit-learn estimator minimises.

    LogisticRegression              binary, or cross-entropy with more than two classes
    SGDClassifier(loss="log_loss")  binary, or one-vs-rest
    SGDClassifier, LinearSVC        hinge-binary, or hinge
    regressors                      squared-error
    """
    kind, n_classes = type(estimator).__name__, len(getattr(estimator, "classes_", ()))
    if n_classes == 0:
        return "squared-error"
    is_multinomial = kind in ("LogisticRegression", "LogisticRegressionCV")
    own = "log_loss" if is_multinomial else str(getattr(estimator, "loss", ""))
    if own == "log_loss":
        return "binary" if n_classes == 2 else "cross-entropy" if is_multinomial else "one-vs-rest"
    if own in ("hinge", "squared_hinge"):
        return "hinge-binary" if n_classes == 2 else "hinge"
    raise UsageError(f"{kind}(loss={own!r}): name the loss to judge by: loss='cross-entropy', 'binary', 'hinge', …")


def labels_for_estimator(labels: Any, estimator: Any, loss: str | UserFunction, dtype: torch.dtype) -> torch.Tensor:
    """Labels as the loss takes them: the place of each among the estimator's classes, or numbers of a regression."""
    found, classes = np.asarray(labels), getattr(estimator, "classes_", None)
    if classes is None:
        return torch.as_tensor(found).to(dtype)
    unknown = sorted(set(found.tolist()) - set(np.asarray(classes).tolist()), key=str)
    if unknown:
        kind = type(estimator).__name__
        raise UsageError(f"{kind}: labels {unknown[:5]} in the test set are none of the estimator's classes")
    places = torch.as_tensor(np.searchsorted(np.asarray(classes), found)).to(torch.int64)
    return places.to(dtype) if loss in ("binary", "hinge-binary", "pairwise") else places


class UtilityModule(nn.Module):
    """Holds a model's tensors under their names, and passes them to a user's function."""

    def __init__(self, utility: Callable[[Any], float], like: Like) -> None:
        super().__init__()
        if len(like) == 0:
            raise UsageError("like: an empty model, expected one with the federation's tensors, whatever their numbers")
        self.utility, self.as_list = utility, not isinstance(like, Mapping)
        named = like if isinstance(like, Mapping) else {str(place): array for place, array in enumerate(like)}
        self.as_tensors = all(isinstance(array, torch.Tensor) for array in named.values())
        self.names = list(named)
        for name, array in named.items():
            self._register(name, array if isinstance(array, torch.Tensor) else torch.as_tensor(np.asarray(array)))

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        """The utility of the tensors that are held now, (1, 1)."""
        held = self.state_dict()
        tensors = {name: held[name].detach().clone() for name in self.names}  # the function may change its arrays
        model: Any = tensors if self.as_tensors else {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        with torch.inference_mode(mode=False):
            found = float(self.utility(list(model.values()) if self.as_list else model))
        if math.isnan(found):
            raise UtilityError(f"{name_of(self.utility)}: gave NaN for a model, expected a number; higher is better")
        return torch.tensor([[found]], dtype=torch.float64)

    def _register(self, name: str, tensor: torch.Tensor) -> None:
        """Register a tensor under a name that may contain dots."""
        *path, last = name.split(".")
        module: nn.Module = self
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_buffer(last, tensor.detach().clone())


class MinusUtility:
    """The loss that belongs to a `UtilityModule`; its name and source are those of the user's function."""

    unit = "which is minus your utility"

    def __init__(self, utility: Callable[[Any], float]) -> None:
        self.__name__, self.__wrapped__ = name_of(utility), utility

    def __call__(self, outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return -outputs.reshape(-1)
