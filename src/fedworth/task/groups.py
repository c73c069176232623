"""Writes a ledger whose clients are groups of another ledger's clients.

A group's answer in a round is the weighted mean of its members that took part, with their total weight, so the server's
model is the same as before. The new ledger contains no single client's model.
"""

from collections.abc import Collection, Mapping

from fedworth.errors import UsageError
from fedworth.ledger.ledger import Ledger, Round
from fedworth.ledger.writer import REAL_WEIGHTS, Answer, LedgerWriter
from fedworth.storage import Place, Progress, silent
from fedworth.task.replay import server_weights
from fedworth.task.rules import model_of, weighted_mean


def group_ledger(
    ledger: Ledger, groups: Mapping[str, Collection[str]], folder: Place, *, progress: Progress = silent
) -> Ledger:
    """Write the ledger in which each group, given by name with its members, is one client.

    Args:
        ledger: The recorded federation.
        groups: The members of each group, by the group's name.
        folder: Where the new ledger is written.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        A ledger in which each group is one client; its model is the average of its members'.

    Example:
        fedworth.group_ledger(ledger, {"coast": ["north", "west"], "inland": ["south"]}, "grouped.ledger")
    """
    named = [member for members in groups.values() for member in members]
    for what, odd in (
        ("in no group", set(ledger.clients) - set(named)),
        ("not clients of the ledger", set(named) - set(ledger.clients)),
        ("in several groups", {member for member in named if named.count(member) > 1}),
    ):
        if odd:
            raise UsageError(f"groups: {', '.join(sorted(odd)[:5])} {what}; put every client into exactly one")
    kept = {name: ledger.settings[name] for name in ("rule", REAL_WEIGHTS) if name in ledger.settings}
    settings = {"source": "groups", "groups": {name: sorted(members) for name, members in groups.items()}, **kept}
    writer = LedgerWriter.create(folder, tuple(groups), aggregation="samples", settings=settings)
    try:
        for round_index in range(ledger.n_rounds):
            round_ = ledger.open_round(round_index)
            answers = _answers(ledger, round_, groups)
            writer.start_round(round_.global_model, asked=list(answers), number=round_.entry.number)
            for name, answer in answers.items():
                writer.client_model(name, answer.model, answer.n_samples)
            writer.end_round()
            progress("grouping rounds", round_index + 1, ledger.n_rounds)
        if ledger.is_closed:
            writer.close(ledger.final_model())
    finally:
        writer.release()
    return Ledger.open(folder)


def _answers(ledger: Ledger, round_: Round, groups: Mapping[str, Collection[str]]) -> dict[str, Answer]:
    """The answer of each group that has a participant."""
    weights = dict(zip(round_.entry.participants, server_weights(ledger, round_), strict=True))
    answers = {}
    for name, members in groups.items():
        present = [k for k in weights if ledger.clients[k] in members]
        if present:
            total = sum(weights[k] for k in present)
            models = [{n: tensor.double().numpy() for n, tensor in round_.client_models[k].items()} for k in present]
            mean = weighted_mean(models, [weights[k] for k in present])  # in float64
            answers[name] = Answer(model_of(mean, round_.global_model), total)
    return answers
