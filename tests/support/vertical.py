"""Small vertical federations, and the definition of their values."""

import itertools
import math

import numpy as np
import torch
from torch import nn

import fedworth
from fedworth.task.vertical import Vertical


def random_federation(folder, *, n_clients=4, n_rounds=3, n_samples=30, combine="concatenation", absent=(), head=None):
    """A ledger of random embeddings in float64: (ledger, vertical, heads, embeddings (n_rounds, n_clients, …))."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    width = 2 if combine == "sum" else 3
    n_in = width if combine == "sum" else width * n_clients
    head = nn.Linear(n_in, 3).double() if head is None else head
    names = [f"client-{k}" for k in range(n_clients)]
    labels = torch.from_numpy(rng.integers(3, size=n_samples))
    vertical = Vertical(head, labels, dict.fromkeys(names, width), combine=combine)
    recorder = fedworth.record_into(folder, vertical=vertical)
    heads, sent = [], []
    for t in range(n_rounds):
        state = {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in head.state_dict().items()}
        fresh = torch.randn(n_clients, n_samples, width, generator=generator, dtype=torch.float64)
        present = [k for k in range(n_clients) if (t, k) not in absent]
        recorder.start_round(state, asked=[names[k] for k in present])
        for k in present:
            recorder.client_embedding(names[k], fresh[k])
        recorder.end_round()
        heads.append(state)
        sent.append([fresh[k] if k in present else None for k in range(n_clients)])
    recorder.close(head.state_dict())
    return fedworth.Ledger.open(folder), vertical, heads, sent


def values_by_definition(vertical, heads, sent):
    """(n_rounds, n_clients): every coalition's loss term by term; the first embeddings are where clients start."""
    n_clients, by_round = len(vertical.clients), []
    held = [next(row[k] for row in sent if row[k] is not None) for k in range(n_clients)]

    def loss(head, parts):
        whole = torch.cat(parts, dim=1) if vertical.form.combine == "concatenation" else sum(parts)
        outputs = torch.func.functional_call(vertical.head, head, (whole,))
        return float(nn.functional.cross_entropy(outputs, vertical.labels))

    for head, row in zip(heads, sent, strict=True):
        new = [held[k] if row[k] is None else row[k] for k in range(n_clients)]

        def utility(members, head=head, new=new, old=tuple(held)):
            return loss(head, list(old)) - loss(head, [new[k] if k in members else old[k] for k in range(n_clients)])

        values = np.zeros(n_clients)
        for k in range(n_clients):
            others = [j for j in range(n_clients) if j != k]
            for size in range(n_clients):
                for some in itertools.combinations(others, size):
                    weight = 1 / (n_clients * math.comb(n_clients - 1, size))
                    values[k] += weight * (utility({*some, k}) - utility({*some}))
        by_round.append(values)
        held = new
    return np.array(by_round)
