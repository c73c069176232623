"""The table of claims: what the paper says, what was found at each of the two settings, the verdict, and why.

holds             at every setting that judges it
depends           at one setting it holds, at the other it does not
does not hold     at no setting, and one judges it
open              no setting judges it
"""

from collections.abc import Sequence

from fedworth.studies.results.outcome import Claim

MARK = {True: "✔", False: "✘", None: "?"}
HEADINGS = ("the paper says", "paper-like", "practical", "verdict", "why")


def claim_lines(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    """A line for every claim, with both settings side by side."""
    by_what: dict[str, dict[str, Claim]] = {}
    for claim in claims:
        by_what.setdefault(claim.what, {})[claim.setting] = claim
    return [_line(what, found) for what, found in by_what.items()]


def _line(what: str, found: dict[str, Claim]) -> tuple[str, ...]:
    alone = found.get("")
    texts = [_text(alone or found.get(setting)) for setting in ("paper-like", "practical")]
    if alone is not None:
        texts[1] = "the same"
    return (what, *texts, *verdict_and_reason([claim.holds for claim in found.values()]))


def _text(claim: Claim | None) -> str:
    return "not run" if claim is None else f"{MARK[claim.holds]} {claim.why}"


def verdict_and_reason(judgements: Sequence[bool | None]) -> tuple[str, str]:
    """What the judgements at the settings add up to; and whether method or setting decides, or nothing does."""
    known = {holds for holds in judgements if holds is not None}
    if not known:
        return "open", "undecided"
    if known == {True, False}:
        return "depends", "setting"
    partly = " where judged" if None in judgements else ""
    return ("**holds**" if known == {True} else "**does not hold**") + partly, "method"
