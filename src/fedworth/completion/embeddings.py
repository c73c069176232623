"""Completion of embeddings: everyone's embedding of every sample in every round of a vertical federation.

A client that was absent from a round has learned nothing in it, so its embeddings are those of its last round. Where
clients send only the embeddings of a batch of samples, those of the others have changed too, unseen. For each client
the embeddings of its rounds are a (rounds × width) by samples matrix, of which the batches are seen:

    last        a sample keeps the embedding that was last seen; before the first, it has the first
    low-rank    h_ti = A_t z_i, by alternating ridge regressions (Fan et al., 2024)
    smooth      the same with twice the rank and A_t drawn to those of the rounds before and after, plus what was left
                of the sample's embedding when it was last seen: h_ti = A_t z_i + (h_si − A_s z_i)

`smooth` is the default: a model that learns changes little by little, and a sample's last embedding says more about it
than any pattern does. `held_out_error` judges them on embeddings of the ledger itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedworth.arrays import Floats, Indices, stream
from fedworth.completion.completion import Caveat
from fedworth.completion.models import NothingAbsent
from fedworth.errors import TooManyError
from fedworth.games.federation import RecordedFederation
from fedworth.ledger.embeddings import EMBEDDING, NO_HEAD, SAMPLES, EmbeddingForm
from fedworth.ledger.ledger import Ledger, Round
from fedworth.names import UnsentEmbeddings
from fedworth.threads import one_blas_thread

MOST_BYTES = 8 << 30
"""Memory that completed embeddings may take."""

N_SWEEPS, RIDGE, SMOOTHING = 12, 1e-3, 1.0
"""Of the regressions; embeddings are scaled to mean square 1."""

HELD_OUT = 0.1

ESTIMATED = (
    "embeddings of samples outside of a batch are estimated ({}): {}; values are mostly too small by this, and by how "
    "much is not known, so they have no intervals"
)

States = Sequence[Sequence[torch.Tensor]]
"""(1 + n_rounds, n_clients) of (n_samples, width): all embeddings before the first round, then after each."""

Batch = tuple[Indices, Floats]
"""Samples, (n,), and their embeddings, (n, width)."""


class EmbeddingLedger(Ledger):
    """The ledger of a vertical federation, read as one of models.

    The global model of a round is the server's head, and everyone's embeddings before the round. A client's model is
    the same with the client's embeddings after the round.
    """

    unsent: UnsentEmbeddings

    @classmethod
    def of(cls, ledger: Ledger, unsent: UnsentEmbeddings) -> "EmbeddingLedger":
        """A ledger of embeddings as one of models; `unsent` says how embeddings that were not sent are estimated."""
        made = cls(**{field.name: getattr(ledger, field.name) for field in fields(ledger)})
        made.__dict__["unsent"] = unsent  # the class is frozen
        return made

    def open_round(self, round_index: int, *, with_apart: bool = False) -> Round:
        """The round with every client's embeddings."""
        recorded = super().open_round(round_index, with_apart=with_apart)
        before, after = self._states[round_index], self._states[round_index + 1]
        start = {f"head.{name}": tensor for name, tensor in recorded.global_model.items() if name != NO_HEAD}
        start |= {f"embeddings.{k}": tensor for k, tensor in enumerate(before)}
        models = {k: {**start, f"embeddings.{k}": after[k]} for k in self.participants(round_index)}
        return Round(recorded.entry, start, models, {})

    @property
    def _form(self) -> EmbeddingForm:
        assert self.form is not None
        return self.form

    @cached_property
    def answers(self) -> list["Answers"]:
        """What each client has sent."""
        rounds = [Ledger.open_round(self, t) for t in range(self.n_rounds)]
        return [Answers.of(self, rounds, k) for k in range(len(self._form.widths))]

    @property
    def is_whole(self) -> bool:
        """Whether every answer has the embeddings of all samples."""
        return all(answers.is_whole for answers in self.answers)

    @cached_property
    def n_deciding(self) -> int:
        """The number of rounds that decide the embeddings of the first ones: all, if some had to be estimated."""
        if not self.is_whole:
            return self.n_rounds
        return 1 + max((answers.first for answers in self.answers), default=-1)

    @cached_property
    def _states(self) -> States:
        n_bytes = sum(8 * a.width * len(a.rounds) * a.n_samples for a in self.answers if not a.is_whole)
        if n_bytes > MOST_BYTES:
            raise TooManyError(
                f"{self.folder}: all embeddings of {self.n_rounds} rounds take {n_bytes >> 30} GB, expected "
                f"{MOST_BYTES >> 30} at most; let clients send those of a few hundred validation samples instead"
            )
        by_client = [answers.states(self.unsent, self.n_rounds) for answers in self.answers]
        return list(zip(*by_client, strict=True))

    def held_out_error(self) -> float | None:
        """The error of embeddings that were held out of the batches, over what training has changed in them (rms).

        None if no sample was sent again with other embeddings.
        """
        pairs = [a.held_out(self.unsent) for a in self.answers if not a.is_whole]
        wrong, changed = (float(sum(pair[side] for pair in pairs)) for side in (0, 1))
        return float(np.sqrt(wrong / changed)) if changed > 0 else None


class EstimatedEmbeddings(NothingAbsent):
    """The games of a vertical federation some of whose embeddings are estimated, with unknown effect on values."""

    def __init__(self, federation: RecordedFederation, ledger: EmbeddingLedger) -> None:
        super().__init__(federation)
        self._ledger = ledger
        found, error = "how far off they are is not known, since no sample was sent twice", ledger.held_out_error()
        if error is not None:
            found = f"those that were held out are off by {error:.0%} of what training changed"
        self.caveats = (Caveat((), ESTIMATED.format(ledger.unsent, found)),)

    def covariance(self) -> None:  # type: ignore[override]
        """Not known."""

    def error_ratios(self, parts: Floats) -> None:  # type: ignore[override]
        """Not known."""

    def summary(self) -> dict[str, Any]:
        """How embeddings were estimated, as JSON."""
        error = self._ledger.held_out_error()
        return {"kind": f"{self._ledger.unsent} completion of embeddings", "held_out_error": error}


@dataclass(frozen=True, eq=False)
class Answers:
    """The embeddings that one client has sent."""

    n_samples: int
    width: int
    rounds: list[int]  # in which it took part
    tensors: list[torch.Tensor]  # (n, width) each
    samples: list[Indices | None]  # None: all
    first: int  # its first round
    start: torch.Tensor  # (n_samples, width): embeddings before its first round, if it is never to take part

    @classmethod
    def of(cls, ledger: EmbeddingLedger, rounds: Sequence[Round], client: int) -> "Answers":
        """What a client has sent; the answers of one that is left out only say where it stays."""
        n, width = ledger._form.n_samples, ledger._form.widths[client]
        sent = {t: round_.client_models[client] for t, round_ in enumerate(rounds) if client in round_.client_models}
        places = {t: model[SAMPLES].numpy() if SAMPLES in model else None for t, model in sent.items()}
        start = torch.zeros(n, width)
        for t in reversed(sent):  # the first embedding of each sample stays
            start = sent[t][EMBEDDING] if places[t] is None else start.to(sent[t][EMBEDDING].dtype).clone()
            if places[t] is not None:
                start[places[t]] = sent[t][EMBEDDING]
        used = [t for t in sent if client in ledger.participants(t)]
        tensors, samples = [sent[t][EMBEDDING] for t in used], [places[t] for t in used]
        return cls(n, width, used, tensors, samples, min(sent, default=-1), start)

    @property
    def is_whole(self) -> bool:
        """Whether nothing has to be estimated."""
        return all(samples is None for samples in self.samples)

    def states(self, how: UnsentEmbeddings, n_rounds: int) -> list[torch.Tensor]:
        """(1 + n_rounds) embeddings of all samples: before the first round, then after each."""
        known: Sequence[torch.Tensor] = self.tensors
        if not self.is_whole:
            known = [torch.from_numpy(found).to(self.start.dtype) for found in completed(self.batches, self, how)]
        held = known[0] if len(known) else self.start
        states, place = [held], 0
        for t in range(n_rounds):
            if place < len(self.rounds) and self.rounds[place] == t:
                held, place = known[place].to(self.start.dtype), place + 1
            states.append(held)
        return states

    @property
    def batches(self) -> list[Batch]:
        """The answers in numpy, in float64."""
        everything = np.arange(self.n_samples)
        pairs = zip(self.samples, self.tensors, strict=True)
        return [(everything if some is None else some, tensor.double().numpy()) for some, tensor in pairs]

    def held_out(self, how: UnsentEmbeddings) -> tuple[float, float]:
        """Squared errors of a tenth of the embeddings after each sample's first, and their squared changes since."""
        rng, seen, kept, apart = stream(0, "held-out embeddings"), np.zeros(self.n_samples, dtype=bool), [], []
        for samples, embeddings in self.batches:
            out = seen[samples] & (rng.random(len(samples)) < HELD_OUT)
            kept.append((samples[~out], embeddings[~out]))
            apart.append((samples[out], embeddings[out]))
            seen[samples] = True
        found, first = completed(kept, self, how), self.start.double().numpy()
        wrong = sum(float(((found[t][some] - h) ** 2).sum()) for t, (some, h) in enumerate(apart))
        return wrong, sum(float(((first[some] - h) ** 2).sum()) for some, h in apart)


def completed(batches: Sequence[Batch], answers: Answers, how: UnsentEmbeddings) -> Floats:
    """(n_batches, n_samples, width): the embeddings of all samples whenever the client sent a batch."""
    with one_blas_thread():
        return COMPLETIONS[how](batches, answers.n_samples, answers.width)


def last_seen(batches: Sequence[Batch], n_samples: int, width: int) -> Floats:
    """Every sample keeps its last embedding; before the first, it has the first."""
    held = np.zeros((n_samples, width))
    for samples, embeddings in reversed(batches):
        held[samples] = embeddings
    found = np.empty((len(batches), n_samples, width))
    for t, (samples, embeddings) in enumerate(batches):
        held[samples] = embeddings
        found[t] = held
    return found


def low_rank(batches: Sequence[Batch], n_samples: int, width: int) -> Floats:
    """A_t z_i, of rank `width`, where nothing was seen."""
    found = _product(batches, n_samples, width, rank=width, smoothing=0.0)
    for t, (samples, embeddings) in enumerate(batches):
        found[t][samples] = embeddings
    return found


def smooth(batches: Sequence[Batch], n_samples: int, width: int) -> Floats:
    """A_t z_i with factors that change slowly, plus what was left of a sample when it was last seen."""
    found = _product(batches, n_samples, width, rank=2 * width, smoothing=SMOOTHING)
    left = [(samples, embeddings - found[t][samples]) for t, (samples, embeddings) in enumerate(batches)]
    return found + last_seen(left, n_samples, width)


COMPLETIONS: Mapping[UnsentEmbeddings, Callable[[Sequence[Batch], int, int], Floats]] = {
    "smooth": smooth,
    "low-rank": low_rank,
    "last": last_seen,
}


def _product(batches: Sequence[Batch], n_samples: int, width: int, *, rank: int, smoothing: float) -> Floats:
    """(n_batches, n_samples, width): A_t z_i, by alternating ridge regressions on scaled embeddings."""
    total = sum(float((embeddings**2).sum()) for _, embeddings in batches)
    scale = float(np.sqrt(total / max(sum(embeddings.size for _, embeddings in batches), 1))) or 1.0
    scaled = [(samples, embeddings / scale) for samples, embeddings in batches]
    Z = 0.1 * stream(0, "factors of embeddings").normal(size=(n_samples, rank))  # (n_samples, rank)
    samples, embeddings = scaled[0]
    Z[samples, : min(rank, width)] = embeddings[:, :rank]  # the first embeddings are the first factors
    A, identity = np.zeros((len(scaled), rank, width)), np.eye(rank)
    for sweep in range(N_SWEEPS):
        for t, (samples, embeddings) in enumerate(scaled):
            z, near = Z[samples], [s for s in (t - 1, t + 1) if 0 <= s < len(A) and (sweep > 0 or s < t)]
            pull = smoothing if near else 0.0
            drawn_to = pull * A[near].mean(axis=0) if pull else 0.0
            A[t] = np.linalg.solve(z.T @ z + (RIDGE + pull) * identity, z.T @ embeddings + drawn_to)
        gram, right = np.tile(RIDGE * identity, (n_samples, 1, 1)), np.zeros((n_samples, rank))
        for t, (samples, embeddings) in enumerate(scaled):
            gram[samples] += A[t] @ A[t].T
            right[samples] += embeddings @ A[t].T
        Z = np.asarray(np.linalg.solve(gram, right[..., None])[..., 0], dtype=np.float64)
    return np.asarray(scale * np.einsum("nr,trw->tnw", Z, A, optimize=True))
