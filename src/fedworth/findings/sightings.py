"""Findings. In: a ledger. Out: what is odd about its clients' answers, with numbers.

    large update    ‖w_k − w^t‖ is 5 times the median of the round or more, and the others' differ far less (`norms`)
    many samples    a client reports 100 times the median sample count of the round, or more
    no update       w_k = w^t, up to the rounding of the numbers
    same model      two clients send the same model in one round
    scaled copy     the update of one client is c times that of another in the same round
    alike           two clients' updates are alike as those of no other two (`likeness`)
    replay          a client sends a model, or c times an update, that it has sent in an earlier round
    late copy       … that another client has sent in an earlier round
    stale model     a client sends a global model of an earlier round
    echo            a client's update is c times the server's last step w^t − w^{t−1}
    contested name  a second node claimed a client's name
    shared node     several clients answered from one node

Equal means equal bytes. "c times" means: the two sketches, scaled to length one, differ by no more than what the
rounding of the models' numbers can make of a copy. Where rounding is a large part of the update this cannot be told,
and nothing is said; nor of norms in a round of fewer than three answers, where there is no median. Medians are those of
one round, since updates become shorter as a model learns. An equal answer to an equal global model is no replay:
training that draws nothing at random repeats itself. The models are read a round at a time.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedworth.findings.copies import Sent, same_bytes, same_directions
from fedworth.findings.finding import IN_DIFFERENT_ROUNDS, LEAST_SURE, Finding, FindingKind, sure_of
from fedworth.findings.likeness import alike_pairs
from fedworth.findings.norms import FEWEST, LARGE_UPDATE, log_ratios, sure_of_large
from fedworth.findings.traces import RoundTrace, trace_of
from fedworth.ledger.ledger import Ledger

MANY_SAMPLES = 100.0


_AS_UPDATES = {FindingKind.SAME_MODEL: FindingKind.SCALED_COPY, FindingKind.STALE_MODEL: FindingKind.ECHO}
"""What equal models would be called if one looked at their updates."""


@dataclass(frozen=True)
class Sighting:
    """One thing seen in one round; findings gather them over the rounds."""

    kind: FindingKind
    clients: tuple[int, ...]
    round_index: int
    evidence: tuple[tuple[str, float], ...] = ()
    sure: float = 1.0


def findings(ledger: Ledger, *, is_kept: bool = True) -> tuple[Finding, ...]:
    """What is odd about the answers in a ledger. `is_kept`: use and keep the traces beside it (see `traces`)."""
    traces = [trace_of(ledger, round_index, is_kept=is_kept) for round_index in range(ledger.n_rounds)]
    seen = [
        sighting
        for round_index, trace in enumerate(traces)
        for sighting in (*_of_nothing(round_index, trace), *_of_counts(ledger, round_index))
    ]
    copied = list(_of_copies(traces))
    seen += [*copied, *_of_norms(traces), *_of_likeness(traces, copied), *_of_names(ledger)]
    return tuple(found for found in _gathered(ledger, seen) if found.sure >= LEAST_SURE)


def _of_nothing(round_index: int, trace: RoundTrace) -> Iterator[Sighting]:
    """Updates that are absent."""
    for client, norm in zip(trace.clients, trace.update_norms[1:].tolist(), strict=True):
        if norm <= trace.rounding * trace.model_norms[0]:
            yield Sighting(FindingKind.NO_UPDATE, (client,), round_index)


def _of_norms(traces: list[RoundTrace]) -> Iterator[Sighting]:
    """Updates that are far longer than the others'."""
    ratios = log_ratios(traces)
    for (round_index, client), ratio in ratios.items():
        if ratio >= math.log(LARGE_UPDATE):
            evidence = (("ratio", math.exp(ratio)),)
            sure = sure_of_large(client, ratios)
            yield Sighting(FindingKind.LARGE_UPDATE, (client,), round_index, evidence, sure)


def _of_likeness(traces: list[RoundTrace], copied: list[Sighting]) -> Iterator[Sighting]:
    """Pairs that are alike; not those that are said to be copies, nor whoever answered with what is not its own."""
    said = {(client, sighting.round_index) for sighting in copied for client in sighting.clients}
    for round_index, trace in enumerate(traces):
        for pair in alike_pairs(trace):
            if not any((client, round_index) in said for client in pair.clients):
                yield Sighting(FindingKind.ALIKE, pair.clients, round_index, (("likeness", pair.likeness),), pair.sure)


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
    equal = [sighting for group in same_bytes(traces) for sighting in _of_group(group)]
    yield from equal
    said = {
        (_AS_UPDATES.get(sighting.kind, sighting.kind), client, sighting.round_index)
        for sighting in equal
        for client in sighting.clients
    }
    n_sent = sum(len(trace.sha256s) for trace in traces)
    compared = n_sent * (n_sent - 1) / 2
    for sighting in (found for group in same_directions(traces) for found in _of_group(group, compared)):
        if any((sighting.kind, client, sighting.round_index) not in said for client in sighting.clients):
            yield sighting


def _of_group(group: list[Sent], n_compared: float = 0.0) -> Iterator[Sighting]:
    """What a group of copies means: for each round, who sent them, and who had sent the same before. `n_compared` pairs
    of updates were looked at; none if the group is of equal models."""
    earlier: list[Sent] = []
    of_models = n_compared == 0
    sure = 1.0 if of_models else sure_of(n_compared * max(sent.chance for sent in group))
    for round_index in sorted({sent.round_index for sent in group}):
        earlier += [sent for sent in group if sent.is_servers and sent.round_index == round_index]
        now = [sent for sent in group if not sent.is_servers and sent.round_index == round_index]
        if len(now) > 1:
            lengths, clients = [sent.length for sent in now], tuple(sent.client for sent in now)
            kind = FindingKind.SAME_MODEL if of_models else FindingKind.SCALED_COPY
            ratio = () if of_models else (("ratio", max(lengths) / min(lengths)),)
            yield Sighting(kind, clients, round_index, ratio, sure)
        before = [sent for sent in earlier if sent.is_servers or sent.start != now[0].start] if now else []
        yield from (replace(_repeated(sent, before, of_models=of_models), sure=sure) for sent in now if before)
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
        max(sighting.sure for sighting in sightings),
    )
