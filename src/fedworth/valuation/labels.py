"""Labels and descriptions of valuation methods."""

LABELS = {
    "comfedsv-models": (
        "ComFedSV by models",
        "potential: what the client would have added, had it always taken part; absent clients' models are predicted",
    ),
    "comfedsv": (
        "ComFedSV",
        "potential, as the paper estimates it: from the utility matrix completed by factors",
    ),
    "fedsv": ("FedSV", "earned: what the client added in the rounds it took part in"),
    "fedsv-later": ("FedSV, later rounds", "earned, without the rounds in which all clients took part"),
    "truth": ("Truth", "truth: what the client would have added, measured with every client's model of every round"),
    "all-clients-round": ("All-clients round", "baseline: the one round in which all clients took part"),
    "leave-one-out": (
        "Leave-one-out",
        "baseline: what the participants lose without the client, summed over its rounds",
    ),
    "banzhaf": (
        "Banzhaf",
        "potential, all coalitions of the others weighted equally; the values do not add up to the total gain",
    ),
    "beta-shapley": (
        "Beta-Shapley",
        "potential, small coalitions weighted most (Beta(16, 1)); the values do not add up to the total gain",
    ),
    "least-core": ("Least core", "potential: minimises the largest complaint of any coalition"),
    "tmc": ("TMC", "earned, by truncated permutations (TMC)"),
    "gtg": ("GTG", "earned, by guided truncated permutations; rounds with little change are left out (GTG-Shapley)"),
    "mr": ("MR", "earned, later rounds weighted less (MR)"),
    "or": ("OR", "earned over the whole training, from models rebuilt from the updates (OR)"),
    "influence": ("Influence", "earned, to first order: how well the client's updates reduce the test loss"),
    "cosine": ("Cosine", "reputation: how well the client's updates agree with the average (CGSV); no test set"),
    "retraining": ("Retraining", "truth of another kind: the federation trained again for every coalition"),
}


def label(method: str) -> str:
    """The name of a method in tables and figures."""
    return LABELS[method][0] if method in LABELS else method


def description(method: str) -> str:
    """What a method measures, in one phrase."""
    return LABELS[method][1] if method in LABELS else method
