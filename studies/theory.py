"""What the paper proves or states without a study, whether it holds, and where docs/theory.md shows it."""

import pandas as pd

TITLE = "What the paper proves, or states without a study"
CLAIMS = pd.DataFrame(
    [
        (
            "Theorem 1: with a δ-complete completion ComFedSV is 4δ/N-Shapley-fair",
            "✘ as printed, with a counterexample from N = 5 on; ✔ with 4δ",
            "[7](theory.md#7-theorem-1-what-a-good-completion-guarantees), `fedworth theory fairness`",
        ),
        (
            "Proposition 1: a bound on the ε-rank of the utility matrix, which determines the rank of the completion",
            "✔ if kept between 1 and min(T, 2^N); ✘ as a rule for the rank: 2,800 to 12,083 where the SVD gives 2 to 5",
            "[8](theory.md#8-rank-of-the-utility-matrix), `fedworth theory rank-bound`, `fedworth theory rank`",
        ),
        (
            "Proposition 2: the same for strongly convex losses",
            "✘ as printed, its bound on the path length was violated in all of 6 runs; ✔ with a further factor L₁",
            "[8](theory.md#8-rank-of-the-utility-matrix), `fedworth theory rank-bound`",
        ),
        (
            "Observation 1: FedSV gives equal clients values that differ by sδ or more with probability at least P_s",
            "✘ as printed, no probability (P_1 = 3.24 for N = 10, m = 3, T = 10); ✔ with 1 − 2p for 1 − p",
            "[6](theory.md#6-observation-1-fedsv-is-unfair), `fedworth theory observation-1`",
        ),
        (
            "Assumption 1: every client takes part in one common round",
            "needed: without that round the rank correlation with the truth was .26 to .56, with it .90 to .96",
            "[4](theory.md#4-completion)",
        ),
        (
            "The Monte Carlo estimate is unbiased",
            "✔ for true utilities or given factors; ✘ with the reduced completion: 5 % of the norm at N = 6, M = 11, "
            "below 1 % at M = 50",
            "[3](theory.md#3-monte-carlo)",
        ),
        (
            "Synthetic(α, β): α and β say how much clients differ; α = β = 0 is IID",
            "✘ α has no effect at all, and with α = β = 0 every client still has its own source",
            "[9](theory.md#9-federation)",
        ),
        (
            "Algorithm 1 costs O(TNK log N), so FedSV is cheaper by K/N",
            "✘ a loose upper bound; counted, the reverse at T = 100 and large N",
            "[10](theory.md#10-cost), `python -m studies time`",
        ),
    ],
    columns=["claim", "verdict", "where"],
)
