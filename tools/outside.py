"""An outside check: one completed game through pyDVL, its values kept in `tests/golden/g9_pydvl.json`.

pyDVL 0.10 needs numpy 1, fedworth numpy 2, so the two meet in a file. In an environment of pyDVL's own:

    python -m venv .venv-pydvl && .venv-pydvl/bin/pip install pydvl==0.10.0
    .venv-pydvl/bin/python tools/outside.py tests/golden/g9_pydvl.json

The file has the game's 2^n utilities (bit i of a coalition's integer stands for client i); the values in it are made
anew. `tests/valuation/rivals/test_outside.py` compares fedworth's with them. Nothing of fedworth is imported here.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pydvl.valuation import (
    BanzhafValuation,
    BetaShapleyValuation,
    DeterministicUniformSampler,
    ExactLeastCoreValuation,
    NoStopping,
    ShapleyValuation,
)
from pydvl.valuation.games import DummyGameDataset, DummyGameUtility

ALPHA, BETA = 16.0, 1.0


def values_of(utilities: list[float]) -> dict[str, Any]:
    """Shapley, Banzhaf, Beta-Shapley and least-core values, each exact."""
    n = len(utilities).bit_length() - 1
    data = DummyGameDataset(n)

    def score(members: Any) -> float:
        return utilities[int(sum(1 << int(k) for k in np.ravel(members)))]

    game = DummyGameUtility(score, (min(utilities), max(utilities)))
    sampler, never = DeterministicUniformSampler(), NoStopping()
    made = {
        "shapley": ShapleyValuation(game, sampler, never),
        "banzhaf": BanzhafValuation(game, sampler, never),
        "beta-shapley": BetaShapleyValuation(game, sampler, never, alpha=ALPHA, beta=BETA),
        "least-core": ExactLeastCoreValuation(game, progress=False),
    }
    results = {name: valuation.fit(data).result for name, valuation in made.items()}
    found: dict[str, Any] = {name: _in_order(result) for name, result in results.items()}
    return {**found, "least-objection": float(results["least-core"].subsidy)}


def _in_order(result: Any) -> list[float]:
    return [float(value) for _, value in sorted(zip(result.indices.tolist(), result.values.tolist(), strict=True))]


def main() -> None:
    """Read the game, write its values beside it."""
    import pydvl

    path = Path(sys.argv[1])
    utilities = json.loads(path.read_text())["utilities"]
    found = {"utilities": utilities, "pydvl": pydvl.__version__, **values_of(utilities)}
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
