"""Made-up reports: hospitals whose values, ranges, findings and rounds are realistic, and known."""

import numpy as np

from fedworth.arrays import Floats
from fedworth.findings import OF_ANSWERS, SAME_MODEL, Finding
from fedworth.provenance import Provenance
from fedworth.report.report import Report, Rounds
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.marginals import Marginals
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation

HOSPITALS = (
    "Northfield General",
    "St. Brigid's Hospital",
    "Universitätsklinikum Bergstadt",
    "Royal Harbour Infirmary",
    "Hôpital Sainte-Claire",
    "Mercy Valley Medical Center",
    "Ålund Regional Hospital",
    "Ospedale San Rocco",
    "Queen Maud Children's",
    "Kestrel Community Hospital",
    "Westbrook Day Surgery",
    "Lakeside Clinic",
)
EVIDENCE = {
    "ratio": 12.0, "n_samples": 9.0, "similarity": 0.9, "explained": 97.0, "own": 0.1, "usual": 20.0,
}  # fmt: skip
"""Numbers for the sentence of any kind that is found in answers."""

WORTHS = (0.84, 0.463, 0.71, 0.62, 0.58, 0.44, 0.49, 0.31, 0.22, 0.06, 0.03, -0.21)
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "{{ 7*7 }}",
    "'\"><svg onload=window.hacked=1>",
    "\u202eevil",
    "=1+1",
)


def hospitals(
    n_clients: int = 12,
    n_rounds: int = 40,
    *,
    seed: int = 7,
    names: tuple[str, ...] = (),
    error: float = 0.08,
    findings: tuple[Finding, ...] | None = None,
    n_groups: int = 0,
) -> Report:
    """A report on hospitals: ComFedSV with intervals, and FedSV beside it."""
    rng = np.random.default_rng(seed)
    known = [*names, *HOSPITALS[len(names) :]]
    clients = tuple(known[k] if k < len(known) else f"Hospital {k + 1:03d}" for k in range(n_clients))
    worths = np.array([WORTHS[k] if k < 12 else rng.normal(0.3, 0.25) for k in range(n_clients)])
    fading = np.exp(-3.2 * np.arange(n_rounds) / n_rounds)[:, None]  # (n_rounds, 1)
    noise = rng.normal(0, 0.35, (n_rounds, n_clients)) * np.abs(worths).mean() * np.sqrt(fading / n_rounds) / 4
    by_round = worths * fading / fading.sum() + noise
    order = rng.random((n_rounds, n_clients)).argsort(axis=1)
    participants = order < max(2, n_clients // 3)
    participants[0] = True
    values = by_round.sum(axis=0)
    spread = error / np.sqrt(participants.sum(axis=0))
    earned = np.where(participants, by_round, 0.0)
    found = Finding(SAME_MODEL, (clients[1], clients[min(6, n_clients - 1)]), (0, 3, 4), 5)
    return Report(
        "Sepsis early-warning model",
        clients,
        (
            Valuation(
                "comfedsv-models",
                clients,
                values,
                completion={"kind": "models", "n_held_out": 120, "n_answers": 160},
                uncertainty=uncertainty(values, np.diag(spread**2)),
                by_round=by_round,
                groups=_groups(values, n_groups, rng) if n_groups else None,
                marginals=Marginals(values, ((),) * n_clients),
            ),
            Valuation("fedsv", clients, earned.sum(axis=0), by_round=earned),
        ),
        coverage={
            "n_rounds_heard": participants.sum(axis=0).tolist(),
            "n_columns": 4095,
            "n_columns_unseen": 0,
            "n_columns_seen_once": 4000,
            "share_seen": 0.11,
            "share_seen_by_size": [0.4] + [0.1] * (n_clients - 1),
            "n_columns_by_size": [12] * n_clients,
        },
        findings=(found,) if findings is None else findings,
        looked_for=OF_ANSWERS,
        rounds=Rounds(tuple(range(1, n_rounds + 1)), participants, earned.sum(axis=1)),
        provenance=Provenance("ab" * 32, n_rounds, "cd" * 32),
    )


def _groups(values: Floats, n_groups: int, rng: np.random.Generator) -> GroupValues:
    """Values by ward: each hospital helps some and harms others; the last ward's are not clear."""
    parts = rng.normal(0, 0.5, (len(values), n_groups))
    parts[:, -1] = 0.001
    parts[:, 0] += values - parts.sum(axis=1)
    names = (*(f"ward {k}" for k in range(n_groups - 1)), "<ward>")
    errors = np.full(parts.shape, 0.002)
    return GroupValues(names, np.full(n_groups, 1 / n_groups), parts, errors, 1.7 * errors, "ward")
