"""Server rules: how a server makes the next global model of its clients' models.

    w_S, state' = rule.aggregate(w^t, models of S, their weights, state of round t)

Models are numpy arrays by name, in the order in which the server added them. A rule is pure: it gets the server's state
and returns the next one. Arithmetic is numpy's in the arrays' own precision, as in the frameworks, so that replaying a
recorded round gives the recorded model to float precision. For a coalition S, only the last step is taken with S
instead of the participants.

    mean           FedAvg, FedProx: Σ n_k w_k / Σ n_k
    momentum       FedAvgM: p ← β p − Δ,  w ← w − η p, with Δ = Σ n_k w_k / Σ n_k − w^t
    adaptive       FedAdam, FedYogi, FedAdagrad (Reddi et al. 2021), with Flower's defaults and order of operations
    median         of every number separately (Yin et al. 2018)
    trimmed-mean   of every number, without the ⌊β n⌋ smallest and the ⌊β n⌋ largest
    krum           the model with the least squared distance to its n − f − 2 nearest (Blanchard et al. 2017), or the
                   weighted mean of the `n_selected` best (multi-Krum)
    sum            FedXgbBagging: w^t + Σ (w_k − w^t), whatever the weights; of margins of trees
    lora-products  the mean of the products B A of adapters, cut to their rank r by its SVD; means of other tensors
    private        clipping and noise around a linear rule (McMahan et al. 2018)

A linear rule's w_S is the weighted mean of one array per member (`contribution`), so the fast oracle can mix them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.errors import LedgerError, UsageError, unknown_name
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.model import Model

Arrays = Mapping[str, NDArray[Any]]
"""A model as numpy arrays by name."""

AdaptiveKind = Literal["adam", "yogi", "adagrad"]

LORA_A = re.compile(r"(lora_(?:embedding_)?)A(?=\.|$)")  # PEFT's names of the factors are lora_A and lora_B

NOISE = "noise"  # the key under which a state keeps the noise that the server drew in a round, where it is known


@dataclass(frozen=True)
class State:
    """What a server knows when it aggregates a round: the round's number, and arrays kept from earlier rounds."""

    number: int = 1
    memory: Mapping[str, Arrays] = field(default_factory=dict)


class Rule(ABC):
    """How a server makes one model of several."""

    name: ClassVar[str]

    @abstractmethod
    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """Return the next global model and the state after it."""

    def document(self) -> dict[str, Any]:
        """The rule as JSON, for the ledger's header."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


class LinearRule(Rule):
    """A rule whose model is the weighted mean of one model per member."""

    @abstractmethod
    def contribution(self, global_model: Arrays, model: Arrays, state: State) -> Arrays:
        """What one member adds to the mean."""


@dataclass(frozen=True)
class WeightedMean(LinearRule):
    """FedAvg, FedProx."""

    name: ClassVar[str] = "mean"

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        return weighted_mean(models, weights), state

    def contribution(self, global_model: Arrays, model: Arrays, state: State) -> Arrays:
        return model


@dataclass(frozen=True)
class ServerMomentum(LinearRule):
    """FedAvgM. It is linear: a member counts as w^t − η (β p + w^t − w_k)."""

    name: ClassVar[str] = "momentum"
    learning_rate: float = 1.0
    momentum: float = 0.0

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """Take one step of momentum from the mean of the models."""
        velocity = self._velocity(global_model, weighted_mean(models, weights), state)
        after = {name: w - self.learning_rate * velocity[name] for name, w in global_model.items()}
        return after, replace(state, memory={"velocity": velocity} if self.momentum > 0 else {})

    def contribution(self, global_model: Arrays, model: Arrays, state: State) -> Arrays:
        """The result of the step with this member alone."""
        velocity = self._velocity(global_model, model, state)
        return {name: w - self.learning_rate * velocity[name] for name, w in global_model.items()}

    def _velocity(self, global_model: Arrays, mean: Arrays, state: State) -> Arrays:
        step = {name: w - mean[name] for name, w in global_model.items()}
        before = state.memory.get("velocity")
        if before is None or self.momentum <= 0:
            return step
        return {name: self.momentum * before[name] + array for name, array in step.items()}


@dataclass(frozen=True)
class Adaptive(Rule):
    """FedAdam, FedYogi and FedAdagrad, by `kind`.

    m ← β₁ m + (1 − β₁) Δ                                    (FedAdagrad: m = Δ)
    v ← β₂ v + (1 − β₂) Δ²                                   FedAdam
    v ← v − (1 − β₂) Δ² sign(v − Δ²)                         FedYogi
    v ← v + Δ²                                               FedAdagrad
    w ← w + η m / (√v + τ)                                   FedAdam: η √(1 − β₂^{r+1}) / (1 − β₁^{r+1}), r the round
    """

    name: ClassVar[str] = "adaptive"
    kind: AdaptiveKind = "adam"
    eta: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.kind not in get_args(AdaptiveKind):
            raise unknown_name("adaptive server", self.kind, get_args(AdaptiveKind))

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """Take one step of the server's optimizer; the moments m and v are kept."""
        mean = weighted_mean(models, weights)
        step = {name: array - global_model[name] for name, array in mean.items()}
        zeros = {name: np.zeros_like(array) for name, array in mean.items()}
        first, second = state.memory.get("first", zeros), state.memory.get("second", zeros)
        beta_1 = 0.0 if self.kind == "adagrad" else self.beta_1
        m = {name: beta_1 * first[name] + (1 - beta_1) * delta for name, delta in step.items()}
        v = {name: self._second_moment(second[name], delta) for name, delta in step.items()}
        rate = self._rate(state.number)
        after = {name: w + rate * m[name] / (np.sqrt(v[name]) + self.tau) for name, w in global_model.items()}
        return after, replace(state, memory={"first": m, "second": v})

    def _rate(self, number: int) -> float:
        if self.kind != "adam":
            return self.eta
        correction = np.sqrt(1 - np.power(self.beta_2, number + 1.0)) / (1 - np.power(self.beta_1, number + 1.0))
        return float(self.eta * correction)

    def _second_moment(self, before: Any, delta: Any) -> Any:
        if self.kind == "adagrad":
            return before + delta**2
        if self.kind == "yogi":
            return before - (1.0 - self.beta_2) * delta**2 * np.sign(before - delta**2)
        return self.beta_2 * before + (1 - self.beta_2) * delta**2


@dataclass(frozen=True)
class Median(Rule):
    """FedMedian."""

    name: ClassVar[str] = "median"

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        return {name: np.median(_stacked(models, name), axis=0) for name in global_model}, state


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """FedTrimmedAvg: `beta` is the share that is cut off at either end."""

    name: ClassVar[str] = "trimmed-mean"
    beta: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 0.5:
            raise UsageError(f"trimmed mean: beta is {self.beta}, expected 0 or more and below 0.5")

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        n_cut = int(self.beta * len(models))
        kept = slice(n_cut, len(models) - n_cut)
        return {name: np.mean(np.sort(_stacked(models, name), axis=0)[kept], axis=0) for name in global_model}, state


@dataclass(frozen=True)
class Krum(Rule):
    """Krum, or multi-Krum with `n_selected` above 1; `n_malicious` is f. Weights count in multi-Krum's mean only."""

    name: ClassVar[str] = "krum"
    n_malicious: int = 0
    n_selected: int = 1

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        chosen = self.selected(models)
        return weighted_mean([models[k] for k in chosen], [weights[k] for k in chosen]), state

    def selected(self, models: Sequence[Arrays]) -> list[int]:
        """The models closest to their neighbours, the best first."""
        flat = np.stack([np.concatenate([np.ravel(array) for array in model.values()]) for model in models])
        flat = flat.astype(np.float64)  # (n_models, n_numbers)
        # Differences are taken before they are squared: |a|² + |b|² − 2ab would lose the distance of close models.
        distances = np.array([np.sum((flat - row) ** 2, axis=1) for row in flat])  # (n_models, n_models)
        n_near = max(1, len(models) - self.n_malicious - 2)
        scores = [float(np.sum(row[np.argsort(row)[1 : n_near + 1]])) for row in distances]
        return [int(k) for k in np.argsort(scores)[: self.n_selected]]


@dataclass(frozen=True)
class Sum(Rule):
    """FedXgbBagging, which appends every client's trees: their margins add up."""

    name: ClassVar[str] = "sum"

    def aggregate(
        self,
        global_model: Arrays,
        models: Sequence[Arrays],
        weights: Sequence[float],
        state: State,
    ) -> tuple[Arrays, State]:
        added = {name: sum((model[name] - w for model in models), w) for name, w in global_model.items()}
        return added, state


@dataclass(frozen=True)
class ProductMean(Rule):
    """Servers that average LoRA's products, as FlexLoRA does: Σ n_k B_k A_k / Σ n_k, cut to rank r by its SVD.

    Other tensors are averaged. Factors are not unique, so a recorded model is compared by its products.

    Args:
        names: The tensors' names in their order, if the ledger has arrays without names.

    Example:
        ledger = fedworth.record_into("new.ledger", rule=fedworth.ProductMean())
    """

    name: ClassVar[str] = "lora-products"
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))  # a list in a ledger's header

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """Average the products without writing them out: the SVD is that of a small matrix between two bases."""
        mean = dict(weighted_mean(models, weights))
        shares = np.array(weights) / sum(weights)
        for a, b in self._pairs(global_model):
            rank = len(global_model[a])
            scaled = [_columns(model[b]) * share for model, share in zip(models, shares, strict=True)]
            outer, left = np.linalg.qr(np.hstack(scaled))  # (n_out, k), (k, n_models · rank)
            inner, right = np.linalg.qr(np.hstack([_columns(model[a]).T for model in models]))
            u, sizes, v = np.linalg.svd(left @ right.T, full_matrices=False)
            roots = np.sqrt(sizes[:rank])
            more = ((0, 0), (0, rank - len(roots)))  # columns of 0, where a layer is smaller than the rank
            after_b, after_a = np.pad(outer @ u[:, :rank] * roots, more), np.pad(inner @ v[:rank].T * roots, more).T
            for name, factor in ((a, after_a), (b, after_b)):
                mean[name] = factor.reshape(global_model[name].shape).astype(global_model[name].dtype)
        return mean, state

    def products(self, models: Sequence[Arrays]) -> Sequence[Arrays]:
        """The models with B A in place of A and B, in bases that all of them share: distances stay what they are."""
        found = [dict(model) for model in models]
        for a, b in self._pairs(models[0]):
            outer = np.linalg.qr(np.hstack([_columns(model[b]) for model in models]))[0]
            inner = np.linalg.qr(np.hstack([_columns(model[a]).T for model in models]))[0]
            for model in found:
                model[a] = (outer.T @ _columns(model.pop(b))) @ (_columns(model[a]) @ inner)
        return found

    def _pairs(self, model: Arrays) -> list[tuple[str, str]]:
        """The names of A and B of every adapter."""
        named = {str(place): name for place, name in enumerate(self.names)}
        own = {named.get(name, name): name for name in model}
        found = [(own[n], own[other]) for n in own for other in (LORA_A.sub(r"\1B", n),) if other != n and other in own]
        if not found:
            raise UsageError(
                f"lora-products: no tensors called lora_A and lora_B among {', '.join(list(own)[:3])}, …; for arrays "
                "without names say fedworth.ProductMean(names=tuple(get_peft_model_state_dict(model)))"
            )
        return found


@dataclass(frozen=True)
class Private(LinearRule):
    """Differential privacy on the server: every update is clipped to a norm, and noise is added to the result.

        w_S = inner rule of { w^t + min(1, C / ‖w_k − w^t‖) (w_k − w^t) : k ∈ S }  +  ν_t,   ν_t ~ N(0, noise²)

    `clipping_norm` is C; None means that the clients clip. The noise that was drawn is the difference between the
    recorded next model and the inner rule's model, and every coalition of the round gets the same noise. Where the
    next model is not recorded, no noise is added.
    """

    name: ClassVar[str] = "private"
    inner: LinearRule
    clipping_norm: float | None
    noise: float  # standard deviation of every number

    def __post_init__(self) -> None:
        if not isinstance(self.inner, LinearRule):
            raise UsageError(f"private rule around {type(self.inner).__name__}: expected a mean, or momentum over it")

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """Apply the inner rule to the clipped models, and add the round's noise if it is known."""
        clipped = [self._clipped(global_model, model) for model in models]
        after, following = self.inner.aggregate(global_model, clipped, weights, state)
        memory = {name: arrays for name, arrays in following.memory.items() if name != NOISE}
        return _with_noise(after, state), replace(following, memory=memory)

    def contribution(self, global_model: Arrays, model: Arrays, state: State) -> Arrays:
        """The inner rule's contribution of the clipped model, plus the noise."""
        return _with_noise(self.inner.contribution(global_model, self._clipped(global_model, model), state), state)

    def document(self) -> dict[str, Any]:
        return {**super().document(), "inner": self.inner.document()}

    def _clipped(self, global_model: Arrays, model: Arrays) -> Arrays:
        if self.clipping_norm is None:
            return model
        update = {name: array - global_model[name] for name, array in model.items()}
        norm = float(np.sqrt(sum(float(np.linalg.norm(array.ravel())) ** 2 for array in update.values())))
        share = min(1.0, self.clipping_norm / norm) if norm > 0 else 1.0
        return {name: global_model[name] + array * share for name, array in update.items()}


RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (WeightedMean, ServerMomentum, Adaptive, Median, TrimmedMean, Krum, Sum, ProductMean, Private)
}


def rule_from(document: Any) -> Rule:
    """The rule that a document in a ledger's header describes."""
    try:
        settings = dict(document)
        kind = RULES[settings.pop("name")]
        if "inner" in settings:
            settings["inner"] = rule_from(settings["inner"])
        return kind(**settings)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        known = ", ".join(RULES)
        raise LedgerError(f"rule {str(document)[:80]}: not understood ({error}); known are {known}") from error


def rule_of(ledger: Ledger) -> Rule:
    """The rule that the recorder saw in the server's strategy, or the weighted mean if it saw none."""
    document = ledger.settings.get("rule")
    return WeightedMean() if document is None else rule_from(document)


def rule_name(rule: Rule) -> str:
    """The rule in words, with its settings."""
    settings = rule.document()
    name = settings.pop("name")
    shown = ", ".join(f"{key} {value}" for key, value in settings.items())
    name = "weighted mean" if name == "mean" else name
    return f"{name} ({shown})" if shown else str(name)


def noise_of(rule: Rule) -> float:
    """The standard deviation of the noise that a server adds to its model; 0 if it adds none."""
    return rule.noise if isinstance(rule, Private) else 0.0


def weighted_mean(models: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """Σ n_k w_k / Σ n_k, added one after the other in the arrays' own precision; the mean of integers is a float."""
    shares = [weight / sum(weights) for weight in weights]
    mean = {name: array * shares[0] for name, array in models[0].items()}
    for model, share in zip(models[1:], shares[1:], strict=True):
        for name, array in model.items():
            mean[name] = mean[name] + array * share
    return mean


def arrays_of(model: Model) -> Arrays:
    """A model's tensors as arrays without a copy; half precision becomes float32, since numpy has no bfloat16."""
    half = (torch.bfloat16, torch.float16)
    return {
        name: (tensor.to(torch.float32) if tensor.dtype in half else tensor).detach().cpu().numpy()
        for name, tensor in model.items()
    }


def model_of(arrays: Arrays, like: Model) -> Model:
    """Arrays as a model with the dtypes of `like`; where it has integers, numbers are rounded."""
    model = {}
    for name, tensor in like.items():
        array = np.array(arrays[name])
        is_rounded = array.dtype.kind == "f" and not tensor.is_floating_point()
        model[name] = torch.from_numpy(np.asarray(np.round(array)) if is_rounded else array).to(tensor.dtype)
    return model


def _stacked(models: Sequence[Arrays], name: str) -> NDArray[Any]:
    return np.stack([model[name] for model in models])  # (n_models, …)


def _columns(factor: NDArray[Any]) -> NDArray[Any]:
    """A factor of an adapter as a matrix; that of a convolution has the places of its kernel among the columns."""
    return np.asarray(factor, np.float64).reshape(len(factor), -1)


def _with_noise(model: Arrays, state: State) -> Arrays:
    noise = state.memory.get(NOISE)
    return model if noise is None else {name: array + noise[name] for name, array in model.items()}
