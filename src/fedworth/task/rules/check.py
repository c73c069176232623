"""Did the server do what the values assume? Every round of a ledger, replayed under a rule and compared.

In: a ledger and a rule. Out: the gap of every round, an error that names the worst one, and the sentences that a reader
of any value must see: by how much the server did something else, and which rounds could not be checked.
"""

from dataclasses import dataclass, field

from fedworth.errors import RuleError
from fedworth.ledger.ledger import Ledger
from fedworth.task.rules.compare import MASKED, RoundCheck
from fedworth.task.rules.documents import rule_name
from fedworth.task.rules.private import noise_of
from fedworth.task.rules.replay import Place, replayed
from fedworth.task.rules.rule import Rule


@dataclass(frozen=True)
class Checked:
    """All rounds of a ledger under one rule, and from where a longer ledger is to be checked."""

    rule: Rule
    checks: tuple[RoundCheck, ...] = ()
    settled: Place = field(default_factory=Place)

    @property
    def largest_gap(self) -> float:
        """The largest gap of all rounds that could be checked; 0 if the server did as the rule says."""
        return max((check.gap or 0.0 for check in self.checks if not check.is_same), default=0.0)

    @property
    def n_same(self) -> int:
        """How many rounds' next models are what the rule gives."""
        return sum(check.is_same and check.gap is not None for check in self.checks)

    def refuse_masked(self) -> None:
        """Refuse a ledger whose answers hide what each client sent: no number measured on them would mean anything."""
        masked = [check.number for check in self.checks if check.is_masked]
        if masked:
            raise RuleError(
                f"round {_listed(masked)}: the answers look masked (secure aggregation): each is more than "
                f"{MASKED:.0f} times as long as the step that the server made of all of them, and longer than the "
                "model itself; one by one they cannot be valued, so record groups of clients whose sums are revealed "
                "(docs/privacy.md)"
            )

    def refuse_others(self) -> None:
        """Refuse a ledger whose server did something else."""
        self.refuse_masked()
        odd = [check for check in self.checks if not check.is_same and check.gap is not None]
        if odd:
            raise RuleError(_refusal(self.rule, odd, sum(check.gap is not None for check in self.checks)))

    def notes(self) -> tuple[str, ...]:
        """What a reader must know: by how much the server did otherwise, and what could not be checked."""
        told = []
        if self.largest_gap > 0:
            told.append(
                f"the server did not do what is valued here, the {rule_name(self.rule)}: its models differ by up to "
                f"{self.largest_gap:.2g} of a round's update; values are those of a server that does (--as-average)"
            )
        return (*told, *self.unchecked())

    def unchecked(self) -> tuple[str, ...]:
        """Which rounds could not be compared, by reason."""
        reasons: dict[str, list[int]] = {}
        for check in self.checks:
            if check.gap is None:
                reasons.setdefault(check.remark, []).append(check.number)
        noise = "; its noise is not known, and none is added" if noise_of(self.rule) else ""
        return tuple(
            f"the server's model after round {_listed(numbers)} could not be checked: {reason}{noise}"
            for reason, numbers in reasons.items()
        )


def check_ledger(ledger: Ledger, rule: Rule, known: Checked | None = None) -> Checked:
    """Check every round of a ledger; those that `known`, of the same ledger when it was shorter, has settled are not
    read again."""
    settled = Place() if known is None else known.settled
    checks = [] if known is None else list(known.checks[: settled.round_index])
    for step in replayed(ledger, rule, settled):
        checks.append(step.check)
        if len(checks) < ledger.n_rounds or ledger.is_closed:
            settled = step.following
    return Checked(rule, tuple(checks), settled)


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:5])
    return f"{shown}, …" if len(numbers) > 5 else shown


def _refusal(rule: Rule, odd: list[RoundCheck], n_checked: int) -> str:
    worst = max(odd, key=lambda check: check.gap or 0.0)
    remark = f" ({worst.remark})" if worst.remark else ""
    return (
        f"round {worst.number}: the recorded next model is not the {rule_name(rule)} of the participants' models; they "
        f"differ by {worst.gap:.2g} of the round's update{remark}; {len(odd)} of {n_checked} rounds that could be "
        "checked differ; name the server's rule (Task(rule=…), or strategy=… when recording), or ask for the "
        "approximation by name: --as-average"
    )
