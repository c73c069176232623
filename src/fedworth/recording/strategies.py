"""The rule that a Flower strategy follows, read from the strategy's class and attributes.

In: a strategy of either API, perhaps inside a wrapper for differential privacy. Out: its rule, or None where the class
is not one that fedworth knows; the check against the recorded models then decides. A class derived from a known one is
taken for it only if it does not aggregate in a way of its own.
"""

from collections.abc import Callable
from typing import Any

from fedworth.task.rules import (
    Adaptive,
    AdaptiveKind,
    Krum,
    LinearRule,
    Median,
    Private,
    Rule,
    ServerMomentum,
    TrimmedMean,
    WeightedMean,
)


def rule_seen(strategy: Any) -> Rule | None:
    """The rule of a strategy, or None if nothing is known of it."""
    made = MAKERS.get(_aggregating_class(strategy))
    return None if made is None else made(strategy)


def weights_seen(strategy: Any) -> str | None:
    """The metric that a strategy of the Message API weights by."""
    inner = getattr(strategy, "strategy", strategy)
    key = getattr(inner, "weighted_by_key", None)
    return key if isinstance(key, str) else None


def _aggregating_class(strategy: Any) -> str:
    """The name of the first class, from the strategy's own upwards, that says how to aggregate."""
    for found in type(strategy).__mro__:
        if {"aggregate_train", "aggregate_fit"} & set(vars(found)):
            return found.__name__ if found.__module__.startswith("flwr.") else ""
    return ""


def _adaptive(kind: AdaptiveKind) -> Callable[[Any], Rule]:
    def made(strategy: Any) -> Rule:
        return Adaptive(kind, strategy.eta, strategy.beta_1, strategy.beta_2, strategy.tau)

    return made


def _krum(strategy: Any) -> Rule:
    """Both APIs: `num_malicious_nodes` and `num_nodes_to_select`, or `num_malicious_clients` and how many to keep."""
    if hasattr(strategy, "num_malicious_nodes"):
        return Krum(strategy.num_malicious_nodes, strategy.num_nodes_to_select)
    return Krum(strategy.num_malicious_clients, max(1, strategy.num_clients_to_keep))


def _private(is_clipping: bool) -> Callable[[Any], Rule | None]:
    def made(strategy: Any) -> Rule | None:
        inner = rule_seen(strategy.strategy)
        noise = strategy.noise_multiplier * strategy.clipping_norm / strategy.num_sampled_clients
        norm = strategy.clipping_norm if is_clipping else None
        return Private(inner, norm, noise) if isinstance(inner, LinearRule) else None

    return made


MAKERS: dict[str, Callable[[Any], Rule | None]] = {
    "FedAvg": lambda _: WeightedMean(),
    "FedAvgM": lambda s: ServerMomentum(s.server_learning_rate, s.server_momentum),
    "FedAdam": _adaptive("adam"),
    "FedYogi": _adaptive("yogi"),
    "FedAdagrad": _adaptive("adagrad"),
    "FedMedian": lambda _: Median(),
    "FedTrimmedAvg": lambda s: TrimmedMean(s.beta),
    "Krum": _krum,
    "MultiKrum": _krum,
    "DifferentialPrivacyServerSideFixedClipping": _private(is_clipping=True),
    "DifferentialPrivacyClientSideFixedClipping": _private(is_clipping=False),
}
