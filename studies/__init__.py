"""The paper's studies, and fedworth's own: simulate many federations, value them, and write pages with the results.

    python -m studies fairness --setup mnist --seeds 0-4 --out runs/fairness

A study is one module with a `STUDY` (see `studies.study`). To add one, write the module and add its name below.
The studies use fedworth's public API only, pandas for tables and matplotlib for figures. They are not in the wheel.
"""

NAMES = (
    "regime", "unfairness", "fairness", "noisy-data", "noisy-labels", "spectrum", "rank", "models", "time",
    "sensitivity", "fidelity", "measures", "findings", "gaming", "coverage", "luck",
    "retraining",
)  # fmt: skip
"""All studies, in the order of their pages."""
