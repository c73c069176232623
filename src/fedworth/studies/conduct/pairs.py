"""How a copied client and its source interact: whether their index is negative, and the largest in size of all pairs.

With fixed weights a coalition's model is the start plus its members' steps, each weighed as in the whole: a copy adds
the step that its source has added already, so the second adds less than the first, and nobody's step is as like it.
With the weights of a mean a copy only changes what its source counts for, and the largest indices are those of pairs
with different classes, whose mean knows both.
"""

from collections.abc import Mapping, Sequence

from fedworth.studies.results.outcome import Claim
from fedworth.studies.trials.trial import Row

MOST = 0.95
"""The share of federations in which a claim must be true."""

SAID = {"fixed": "fixed weights", "uniform": "the weights of a mean"}


def interaction_claims(rows: Sequence[Row], partitions: Mapping[str, str]) -> list[Claim]:
    """What is claimed of the pair, by weighting and partition."""
    known = [row for row in rows if row["reading"].get("interactions")]
    made = []
    for weighting, weights in SAID.items():
        for partition, data in partitions.items():
            mine = [_pair(row, weighting) for row in known if row["federation"]["partition"] == partition]
            made += _claims(f"a copy and its source, {weights}, {data}", mine) if mine else []
    return made


def _claims(where: str, pairs: Sequence[tuple[bool, bool, bool]]) -> list[Claim]:
    n, (negative, first, largest) = len(pairs), (sum(pair[place] for pair in pairs) for place in range(3))
    sizes = f"{largest} of {n} federations; the most negative of all pairs in {first}"
    return [
        Claim(f"{where}: their interaction is negative", negative >= MOST * n, f"{negative} of {n} federations"),
        Claim(f"{where}: it is the largest in size of all pairs", largest >= MOST * n, sizes),
    ]


def _pair(row: Row, weighting: str) -> tuple[bool, bool, bool]:
    """Whether the planted pair's index is negative, the most negative, and the largest in size."""
    pairs = row["reading"]["interactions"][weighting]
    planted = set(row["reading"]["planted"])
    (index,) = [index for first, second, index in pairs if {first, second} == planted]
    others = [index for first, second, index in pairs if {first, second} != planted]
    return index < 0, index < min(others), abs(index) > max(abs(other) for other in others)
