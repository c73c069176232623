"""The settings that `fidelity` looks at, and the names they go by."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Trial

N, K_OF_TEN, COPIES = 10, 3, ((9, 0),)
FLIPPED, NOISY_OF_TEN = 0.3, 2
NOISE_SHARES = tuple(round(0.05 * k, 2) for k in range(N))


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """A federation with its truth for every seed."""
    changes = {"n_rounds": extent.n_rounds, "with_truth": True, **_special(setup, extent)}
    return [Trial(replace(setup.federation(seed), **changes), reading="fidelity") for seed in seeds]


def _special(setup: Setup, extent: Extent) -> dict[str, Any]:
    """How many clients, whether one is a copy, and what is special about them."""
    n = extent.n_clients
    sized: dict[str, Any] = {"n_clients": n, "n_participants": K_OF_TEN * n // 10}
    copied = {"copies": COPIES} if n == N and setup.partition != "iid" else {}
    match extent.special:
        case "noisy data":
            return {**sized, "noise_shares": NOISE_SHARES}
        case "noisy labels":
            n_noisy = NOISY_OF_TEN * n // 10
            few = {} if n == N else {"n_participants": n // 10}
            return {**sized, **few, "flip_shares": (FLIPPED,) * n_noisy + (0.0,) * (n - n_noisy)}
        case "batches":
            return {**sized, **copied, "copies_shuffled": True}
        case "samples":
            return {**sized, **copied, "aggregation": "samples"}
        case "unheard":
            return {**sized, **copied, "everyone_heard": False}
    return {**sized, **copied}


def setting_of(federation: dict[str, Any]) -> str:
    """The name of a setting, from the settings of a federation."""
    noise = (
        "noisy data" if any(federation["noise_shares"]) else "noisy labels" if any(federation["flip_shares"]) else ""
    )
    kind = noise or {"two-class": "two classes each", "iid": "IID", "natural": "own sources"}[federation["partition"]]
    parts = [federation["dataset"] + (" CNN" if federation["model"] == "cnn" else ""), kind]
    parts += [f"N = {federation['n_clients']}"] if federation["n_clients"] != 10 else []
    parts.append(f"T = {federation['n_rounds']}")
    parts += ["copies draw other batches"] if federation.get("copies_shuffled") else []
    parts += ["weighed by samples"] if federation["aggregation"] == "samples" else []
    parts += [] if federation["everyone_heard"] else ["no round with everyone"]
    return ", ".join(parts)
