"""Verify a statement: are the models that were valued those that the client sent?

The client compares the statement with its own receipts, and needs nobody else's models. Whoever may read the ledger
can also compare the statement with it.
"""

from collections.abc import Iterator, Sequence

from fedworth.errors import ArtefactError
from fedworth.ledger.ledger import verify_ledger
from fedworth.ledger.receipts import Receipt, read_receipts
from fedworth.pipeline.verify import Check
from fedworth.report.page.statement import Statement, read_statement, with_models
from fedworth.storage import Place


def verify_statement(statement: Place, receipts: Place | None = None, *, ledger: Place | None = None) -> list[Check]:
    """Compare a statement with the client's own receipts, with the ledger, or with both.

    Args:
        statement: The page that the client was sent.
        receipts: The client's file of receipts.
        ledger: The ledger that was valued, if it may be read.

    Returns:
        What was compared; differences are an error that names all of them.

    Example:
        fedworth.receipt(answer, round_number=0, n_samples=30, file="receipts.jsonl")  # when the client sends it
        page = report.write_statement("north", "statements", ledger=ledger)
        checks = fedworth.verify_statement(page, "receipts.jsonl")
    """
    said = read_statement(statement)
    if said.models is None:
        raise ArtefactError(
            f"{statement}: names no models, so it cannot be compared; ask for one made with the ledger "
            "(fedworth statement … --ledger LEDGER)"
        )
    checks = [Check("statement", False, f"{_claims(said)}; see that the page shows the same")]
    wrong: list[Check] = []
    if receipts is not None:
        for check, is_wrong in _compared(said, said.models, read_receipts(receipts)):
            (wrong if is_wrong else checks).append(check)
    if ledger is not None and with_models(said, verify_ledger(ledger)) != said:
        wrong.append(Check("ledger", True, "its models of this client are not those that the statement lists"))
    elif ledger is not None:
        checks.append(Check("ledger", True, "every byte as written, and its models are those that the statement lists"))
    if wrong:
        found = "; ".join(f"{check.name}: {check.found}" for check in wrong)
        raise ArtefactError(f"{statement}: {found}. Show this to the coordinator, with your receipts")
    return checks


def _claims(said: Statement) -> str:
    """What the statement's block of JSON says; whoever wrote the page may show its reader something else."""
    value = "no value" if said.value is None else f"a value of {said.value:+.4g}"
    return (
        f"says that {said.client!r} has {value} by {said.method}, by {said.judged_by} on {said.n_test_samples} test "
        f"samples, from the ledger with the head {said.ledger_head}"
    )


def _compared(said: Statement, models: Sequence[Receipt], receipts: Sequence[Receipt]) -> Iterator[tuple[Check, bool]]:
    """Every round of the statement or the receipts: what was found, and whether the two contradict each other."""
    sent: dict[int, list[Receipt]] = {}  # a model that was sent again has two receipts
    for receipt in receipts:
        sent.setdefault(receipt.round, []).append(receipt)
    for valued in models:
        yield _one_round(valued, sent.get(valued.round, []))
    why = dict(said.unused)
    for number in sorted(sent.keys() - {model.round for model in models}):
        name = f"round {number}"
        if number in why:
            yield Check(name, False, f"your model was not used ({why[number]}); ask for the reason"), False
        elif number <= said.last_round:
            yield Check(name, True, "you sent a model, and the statement says that none of yours arrived"), True
        else:
            yield Check(name, False, f"after round {said.last_round}, the last that was valued"), False


def _one_round(valued: Receipt, sent: Sequence[Receipt]) -> tuple[Check, bool]:
    """One model that was valued, against the receipts for its round."""
    name = f"round {valued.round}"
    if not sent:
        return Check(name, False, "you have no receipt"), False
    same = [receipt for receipt in sent if receipt.sha256 == valued.sha256]
    by_place = [receipt for receipt in sent if receipt.unnamed == valued.unnamed and not receipt.is_named]
    if not same and not by_place:
        return Check(name, True, "the model that was valued is not the one that you sent"), True
    counts = [receipt.n_samples for receipt in same or by_place]
    if valued.n_samples not in counts:
        credited = f"credited with {valued.n_samples:g} samples, and you reported {counts[0]:g}"
        return Check(name, True, f"the model is yours, but {credited}"), True
    if not same:
        found = (
            "your tensors, but your receipt has no names for them (receipt(…, names=…)): their order is not compared"
        )
        return Check(name, False, found), False
    return Check(name, True, f"the model that you sent, {valued.n_samples:g} samples"), False
