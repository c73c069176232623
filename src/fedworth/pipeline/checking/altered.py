"""Altered copies of a ledger: the same rounds with a client more, in another order, or with answers that
were not heard.

In: a ledger, a folder, what to alter. Out: another ledger in that folder. Its rounds no longer fit its server's next
models, since nobody trained it, so it is valued as an average, by name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fedworth.ledger.ledger import Ledger, Round, open_ledger
from fedworth.ledger.writer import Answer, create_ledger

Answers = dict[str, Answer]

CLONE, IDLE = "a copy", "an idle one"
"""Names of the clients that are added; a name of a client that is there gets a star."""


def with_clone(ledger: Ledger, client: str, folder: Path) -> tuple[Ledger, str]:
    """Wherever the client answers, another one answers the same."""
    name = _free(CLONE, ledger)

    def add(answers: Answers, _round: Round) -> Answers:
        return {**answers, name: answers[client]} if client in answers else answers

    return rewritten(ledger, folder, (*ledger.clients, name), add), name


def with_idle(ledger: Ledger, folder: Path) -> tuple[Ledger, str]:
    """In every round another client sends back the global model as it is, with an average number of samples."""
    name = _free(IDLE, ledger)

    def add(answers: Answers, round_: Round) -> Answers:
        typical = sorted(answer.n_samples for answer in answers.values())[len(answers) // 2] if answers else 1
        return {**answers, name: Answer(round_.global_model, typical)}

    return rewritten(ledger, folder, (*ledger.clients, name), add), name


def in_reverse(ledger: Ledger, folder: Path) -> Ledger:
    """The clients in the opposite order."""
    return rewritten(ledger, folder, ledger.clients[::-1], lambda answers, _: answers)


def with_fewer_heard(ledger: Ledger, unheard: Mapping[int, Collection[str]], folder: Path) -> Ledger:
    """The same rounds, but the server has not heard some clients in some of them."""

    def drop(answers: Answers, round_: Round) -> Answers:
        gone = unheard.get(round_.entry.round_index, ())
        return {name: answer for name, answer in answers.items() if name not in gone}

    return rewritten(ledger, folder, ledger.clients, drop)


def rewritten(
    ledger: Ledger,
    folder: Path,
    clients: Sequence[str],
    change: Callable[[Answers, Round], Answers],
) -> Ledger:
    """A ledger of the same rounds with changed answers of the participants; whoever else answered is left out."""
    writer = create_ledger(folder, list(clients), aggregation=ledger.aggregation)
    try:
        for round_index in range(ledger.n_rounds):
            round_ = ledger.open_round(round_index)
            counts = dict(zip(round_.entry.answered, round_.entry.sample_counts, strict=True))
            answers = {
                ledger.clients[k]: Answer(round_.client_models[k], counts[k]) for k in ledger.participants(round_index)
            }
            changed = change(answers, round_)
            if changed:  # a round that nobody answers adds nothing to any value
                writer.record_round(round_.global_model, {name: changed[name] for name in clients if name in changed})
        last = ledger.open_round(ledger.n_rounds - 1).global_model
        writer.close(ledger.final_model() if ledger.is_closed else last)
    finally:
        writer.release()
    return open_ledger(folder)


def _free(name: str, ledger: Ledger) -> str:
    while name in ledger.clients:
        name += "*"
    return name
