"""Length: clients that gain by sending longer updates than the others.

Let p be a client's share of all positive values by FedSV, and q its share if every update had the median length of its
round (`fedsv-equal`). A client is reported if

    its updates are 1.5 times as long as the median (geometric mean over its rounds), and p − q ≥ .4 / n

with n clients, so that it gains 40 % of an equal share. Both shares are measured; where coalitions were sampled, the
confidence is the probability that p > q.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr

from fedworth.arrays import Floats
from fedworth.findings.finding import Evidence, Kind, Level, confidence_of
from fedworth.valuation.valuation import Valuation

AS_SENT, EQUAL = "fedsv", "fedsv-equal"
"""The methods whose shares are compared."""

LEAST_LENGTH, LEAST_PART = 1.5, 0.4

LONG = Kind(
    "value by length",
    Level.ACT,
    sentence="{clients} sent updates of {ratio} times the median length on average, and has {share} % of all positive "
    "values (FedSV); {equal} % if every update had the median length of its round",
    basis="both shares, measured",
    title="gains by the length of its updates",
    why="A longer update can earn more than the data justify, as long as the others take small steps.",
    action="Ask for its learning rate and number of steps. To value all updates at the same length, make the report "
    "again with option --clip median.",
    client_title="You gain by the length of your updates",
    client_action="Check your learning rate and your number of steps: they should be those that were agreed.",
    needs="values by FedSV, as sent and at equal length",
)


def length_evidence(sent: Valuation, equal: Valuation, lengths: Floats) -> Iterator[Evidence]:
    """Clients that gain by length, from (n_rounds, n_clients) lengths in medians of their round, NaN if absent."""
    shares, at_equal = sent.shares, equal.shares  # (n_clients,), NaN without a value
    n_clients = int(np.isfinite(sent.values).sum())
    for k in np.flatnonzero(shares - at_equal >= LEAST_PART / max(n_clients, 1)).tolist():
        own = lengths[:, k][lengths[:, k] > 0]
        ratio = float(np.exp(np.log(own).mean())) if len(own) else 0.0
        if ratio < LEAST_LENGTH:
            continue
        error = float(np.hypot(_error(sent)[k], _error(equal)[k]))
        confidence = confidence_of(float(ndtr(-(shares[k] - at_equal[k]) / error)) if error > 0 else 0.0)
        numbers = {"ratio": ratio, "share": 100 * float(shares[k]), "equal": 100 * float(at_equal[k])}
        for t in np.flatnonzero(lengths[:, k] > 1).tolist():
            yield Evidence(LONG, (k,), t, numbers, confidence)


def _error(valuation: Valuation) -> Floats:
    """(n_clients,): standard errors of shares due to the sampling of coalitions."""
    errors = np.zeros(len(valuation)) if valuation.sampling_errors is None else np.nan_to_num(valuation.sampling_errors)
    return np.asarray(errors / float(np.nansum(np.maximum(valuation.values, 0))))
