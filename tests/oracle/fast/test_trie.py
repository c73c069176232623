"""The trie reaches what was asked for, and its slots never lose a sum that is still needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays

from fedworth.coalitions import prefixes
from fedworth.errors import UtilityError
from fedworth.oracle.fast.trie import NOWHERE, ROOT, Trie, coalition_trie

memberships = arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12))


def coalitions_of_steps(trie: Trie) -> list[int]:
    """Each step's coalition as an integer, by following parents: slow and obvious."""
    coalitions: list[int] = []
    for client, parent in zip(trie.clients, trie.parents, strict=True):
        before = 0 if parent == ROOT else coalitions[parent]
        assert not before & 1 << int(client), "a client joins a coalition it is in"
        coalitions.append(before | 1 << int(client))
    return coalitions


def coalitions_in_slots(trie: Trie) -> list[int]:
    """The same, from the sums a kernel would find in the slots."""
    slots: list[int | None] = [None] * trie.n_slots
    slots[0] = 0
    coalitions = []
    for client, source, target in zip(trie.clients, trie.sources, trie.targets, strict=True):
        before = slots[source]
        assert before is not None
        coalitions.append(before + (1 << int(client)))
        if target != NOWHERE:
            slots[target] = coalitions[-1]
    return coalitions


def asked_for(trie: Trie) -> list[int]:
    coalitions = coalitions_of_steps(trie)
    return [0 if step == ROOT else coalitions[step] for step in trie.coalition_steps]


def as_integers(members) -> list[int]:
    return [sum(1 << int(k) for k in np.flatnonzero(row)) for row in members.tolist()]


def every_coalition(n_clients: int):
    return (np.arange(2**n_clients)[:, None] >> np.arange(n_clients) & 1).astype(np.bool_)


@given(memberships)
def test_every_coalition_is_reached_by_its_members(members):
    trie = coalition_trie(members)
    assert asked_for(trie) == as_integers(members)
    assert coalitions_in_slots(trie) == coalitions_of_steps(trie)


@given(memberships)
def test_equal_coalitions_are_one_step(members):
    trie = coalition_trie(np.concatenate((members, members)))
    steps = coalitions_of_steps(trie)
    assert len(set(steps)) == len(steps)
    wanted = {coalition for coalition, is_wanted in zip(steps, trie.wanted, strict=True) if is_wanted}
    assert wanted == set(as_integers(members)) - {0}


@given(memberships)
def test_slots_are_few(members):
    trie = coalition_trie(members)
    assert trie.n_slots <= 1 + np.log2(trie.n_steps + 1)


def test_every_coalition_of_ten_clients_costs_one_step():
    trie = coalition_trie(every_coalition(10))
    assert trie.n_steps == 1023
    assert trie.wanted.all()
    assert trie.asks_for_empty


def test_prefixes_cost_one_step_each():
    rng = np.random.default_rng(0)
    cells = prefixes(np.stack([rng.permutation(30) for _ in range(20)]), 30)
    assert coalition_trie(cells).n_steps == len(np.unique(cells, axis=0)) - 1  # the empty one costs nothing


def test_a_chain_of_a_thousand_clients_needs_one_slot():
    trie = coalition_trie(prefixes(np.random.default_rng(0).permutation(1000)[None], 1000))
    assert (trie.n_steps, trie.n_slots) == (1000, 1)


@given(memberships)
def test_totals_are_the_weights_of_the_members(members):
    weights = np.linspace(1.0, 2.0, members.shape[1])
    trie = coalition_trie(members)
    occupied = trie.coalition_steps != ROOT
    totals = trie.totals(weights)[0][trie.coalition_steps[occupied]]
    np.testing.assert_allclose(totals, (members @ weights)[occupied])


def test_memberships_must_be_a_table():
    with pytest.raises(UtilityError, match=r"expected \(n_coalitions, n_clients\)"):
        coalition_trie(np.ones(3, np.bool_))


def test_no_step_leads_nowhere():
    """A path that turns into a coalition known by another way leaves nodes behind, which must be dropped."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        n_coalitions, n_clients = rng.integers(1, 8), rng.integers(1, 7)
        trie = coalition_trie(rng.random((n_coalitions, n_clients)) < rng.random())
        assert (trie.wanted | (trie.targets >= 0)).all()
