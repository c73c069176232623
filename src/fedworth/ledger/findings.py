"""Findings. In: a ledger. Out: what is odd about its clients' answers, with numbers.

    large update    ‖w_k − w^t‖ is 10 times the median of the round, or more
    many samples    a client reports 100 times the median sample count of the round, or more
    no update       w_k = w^t, up to the rounding of the numbers
    same model      two clients send the same model in one round
    scaled copy     the update of one client is c times that of another in the same round
    replay          a client sends a model, or c times an update, that it has sent in an earlier round
    late copy       … that another client has sent in an earlier round
    stale model     a client sends a global model of an earlier round
    echo            a client's update is c times the server's last step w^t − w^{t−1}
    contested name  a second node claimed a client's name
    shared node     several clients answered from one node

Equal means equal bytes. "c times" means: the two sketches, scaled to length one, differ by no more than what the
rounding of the models' numbers can make of a copy. Where rounding is a large part of the update this cannot be told,
and nothing is said; nor in a round of fewer than three answers, where there is no median to speak of. Medians are those
of one round, since updates become shorter as a model learns. An equal answer to an equal global model is no replay:
training that draws nothing at random repeats itself. The models are read a round at a time.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedworth.ledger.copies import Sent, same_bytes, same_directions
from fedworth.ledger.finding import IN_DIFFERENT_ROUNDS, Finding, FindingKind
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.traces import RoundTrace, trace_of

LARGE_UPDATE = 10.0
MANY_SAMPLES = 100.0
FEWEST = 3
"""Answers in a round without which no median is taken."""


_AS_UPDATES = {FindingKind.SAME_MODEL: FindingKind.SCALED_COPY, FindingKind.STALE_MODEL: FindingKind.ECHO}
"""What equal models would be called if one looked at their updates."""


@dataclass(frozen=True)
class Sighting:
    """One thing seen in one round; findings gather them over the rounds."""

    kind: FindingKind
    clients: tuple[int, ...]
    round_index: int
    evidence: tuple[tuple[str, float], ...] = ()


def findings(ledger: Ledger, *, is_kept: bool = True) -> tuple[Finding, ...]:
    """What is odd about the answers in a ledger. `is_kept`: use and keep the traces beside it (see `traces`)."""
    traces = [trace_of(ledger, round_index, is_kept=is_kept) for round_index in range(ledger.n_rounds)]
    seen = [
        sighting
        for round_index, trace in enumerate(traces)
        for sighting in (*_of_norms(round_index, trace), *_of_counts(ledger, round_index))
    ]
    return tuple(_gathered(ledger, [*seen, *_of_copies(traces), *_of_names(ledger)]))


def _of_norms(round_index: int, trace: RoundTrace) -> Iterator[Sighting]:
    """Updates that are absent, or far longer than the round's median."""
    norms, start = trace.update_norms[1:], trace.model_norms[0]
    median = float(np.median(norms)) if len(norms) >= FEWEST else 0.0
    for client, norm in zip(trace.clients, norms.tolist(), strict=True):
        if norm <= trace.rounding * start:
            yield Sighting(FindingKind.NO_UPDATE, (client,), round_index)
        elif 0 < LARGE_UPDATE * median <= norm:
            yield Sighting(FindingKind.LARGE_UPDATE, (client,), round_index, (("ratio", norm / median),))


def _of_counts(ledger: Ledger, round_index: int) -> Iterator[Sighting]:
    """Sample counts far above the round's median."""
    entry = ledger.entries[round_index]
    median = float(np.median(entry.sample_counts)) if len(entry.sample_counts) >= FEWEST else 0.0
    for client, count in zip(entry.answered, entry.sample_counts, strict=True):
        if 0 < MANY_SAMPLES * median <= count:
            evidence = (("n_samples", float(count)), ("ratio", count / median))
            yield Sighting(FindingKind.MANY_SAMPLES, (client,), round_index, evidence)


def _of_copies(traces: list[RoundTrace]) -> Iterator[Sighting]:
    """Models that are equal, and updates that are scaled copies; what is equal is not said to be scaled as well."""
    equal = [sighting for group in same_bytes(traces) for sighting in _of_group(group, of_models=True)]
    yield from equal
    said = {
        (_AS_UPDATES.get(sighting.kind, sighting.kind), client, sighting.round_index)
        for sighting in equal
        for client in sighting.clients
    }
    for sighting in (found for group in same_directions(traces) for found in _of_group(group, of_models=False)):
        if any((sighting.kind, client, sighting.round_index) not in said for client in sighting.clients):
            yield sighting


def _of_group(group: list[Sent], *, of_models: bool) -> Iterator[Sighting]:
    """What a group of copies means: for each round, who sent them, and who had sent the same before."""
    earlier: list[Sent] = []
    for round_index in sorted({sent.round_index for sent in group}):
        earlier += [sent for sent in group if sent.is_servers and sent.round_index == round_index]
        now = [sent for sent in group if not sent.is_servers and sent.round_index == round_index]
        if len(now) > 1:
            lengths, clients = [sent.length for sent in now], tuple(sent.client for sent in now)
            kind = FindingKind.SAME_MODEL if of_models else FindingKind.SCALED_COPY
            yield Sighting(kind, clients, round_index, () if of_models else (("ratio", max(lengths) / min(lengths)),))
        before = [sent for sent in earlier if sent.is_servers or sent.start != now[0].start] if now else []
        yield from (_repeated(sent, before, of_models=of_models) for sent in now if before)
        earlier += now


def _repeated(sent: Sent, earlier: list[Sent], *, of_models: bool) -> Sighting:
    """Who had sent the same before: the client itself, or else the server, or else another client."""
    servers = [other for other in earlier if other.is_servers]
    if any(other.client == sent.client for other in earlier):
        return Sighting(FindingKind.REPLAY, (sent.client,), sent.round_index)
    if servers and of_models:
        return Sighting(FindingKind.STALE_MODEL, (sent.client,), sent.round_index)
    if servers:
        return Sighting(
            FindingKind.ECHO, (sent.client,), sent.round_index, (("ratio", sent.length / servers[-1].length),)
        )
    return Sighting(FindingKind.LATE_COPY, (earlier[0].client, sent.client), sent.round_index)


def _of_names(ledger: Ledger) -> Iterator[Sighting]:
    """Names that two nodes claimed, and nodes that answered by two names."""
    answers: dict[str, list[tuple[int, int]]] = defaultdict(list)  # node → (client, round)
    for entry in ledger.entries:
        yield from (Sighting(FindingKind.CONTESTED_NAME, (client,), entry.round_index) for client in entry.contested)
        for client, node in zip(entry.answered, entry.nodes, strict=bool(entry.nodes)):
            answers[node].append((client, entry.round_index))
    for node, given in answers.items():
        clients = tuple(sorted({client for client, _ in given}))
        if node and len(clients) > 1:
            yield from (Sighting(FindingKind.SHARED_NODE, clients, round_index) for _, round_index in given)


def _gathered(ledger: Ledger, sightings: list[Sighting]) -> Iterator[Finding]:
    """One finding for each kind and each set of clients that belong together, over all rounds."""
    for kind in FindingKind:
        mine = [sighting for sighting in sightings if sighting.kind is kind]
        for clients in _joined([sighting.clients for sighting in mine]):
            theirs = [sighting for sighting in mine if sighting.clients[0] in clients]
            yield _finding(ledger, kind, clients, theirs)


def _joined(groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Groups that share a client made one, in the order of the clients."""
    joined: list[set[int]] = []
    for group in map(set, groups):
        apart = [other for other in joined if not other & group]
        joined = [*apart, group.union(*(other for other in joined if other & group))]
    return sorted(tuple(sorted(group)) for group in joined)


def _finding(ledger: Ledger, kind: FindingKind, clients: tuple[int, ...], sightings: list[Sighting]) -> Finding:
    together = 1 if len(clients) == 1 or kind in IN_DIFFERENT_ROUNDS else 2
    there = [entry.asked if kind is FindingKind.CONTESTED_NAME else entry.answered for entry in ledger.entries]
    possible = [heard for heard in there if len(set(clients) & set(heard)) >= together]
    indices = sorted({sighting.round_index for sighting in sightings})
    largest: dict[str, float] = {}
    for name, number in (pair for sighting in sightings for pair in sighting.evidence):
        largest[name] = max(number, largest.get(name, 0.0))
    return Finding(
        kind,
        tuple(ledger.clients[k] for k in clients),
        tuple(ledger.entries[t].number for t in indices),
        len(possible),
        largest,
    )
