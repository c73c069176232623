"""Coalitions under the server's rule: as made by hand, refused where the server did something else, cached apart."""

import hashlib
import itertools
import json
import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from torch.func import functional_call

import fedworth
from fedworth.errors import RuleError, UsageError, UtilityError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import RoundEntry, line_bytes, read_header, read_lines
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, OutputOracle
from fedworth.oracle.server import Server, server_of
from fedworth.oracle.weighting import mixtures
from fedworth.storage import json_bytes
from fedworth.task.replay import replayed
from fedworth.task.rules import Adaptive, Krum, Median, Private, ServerMomentum, WeightedMean, arrays_of
from fedworth.task.task import Task
from tests.support.federations import federation_of
from tests.support.servers import federation

RULES = [ServerMomentum(0.7, 0.9), Adaptive("yogi"), Median(), Krum(0, 2), Private(WeightedMean(), 0.8, 0.0)]
TASK_FILE = """
import torch
from fedworth.task.task import Task

def task():
    rng = torch.Generator().manual_seed(2)
    return Task(torch.nn.Linear(3, 4), torch.randn(30, 3, generator=rng), torch.randint(4, (30,), generator=rng))
"""


def task(**options):
    rng = torch.Generator().manual_seed(2)
    inputs, labels = torch.randn(30, 3, generator=rng), torch.randint(4, (30,), generator=rng)
    return Task(torch.nn.Linear(3, 4), inputs, labels, **options)


def loss(arrays):
    model = {name: torch.as_tensor(np.array(array), dtype=torch.float32) for name, array in arrays.items()}
    on = task()
    logits = functional_call(on.module, model, (on.inputs,)).double()
    return float(torch.nn.functional.cross_entropy(logits, on.labels))


def observed(ledger, oracle=None, **options):
    return federation_of(ledger, oracle or LoopOracle(task()), **options)


def by_hand(ledger, rule):
    """(round, coalition) → utility, by the rule itself in the state that the server had."""
    found = {}
    for round_, step in zip(ledger.rounds(), replayed(ledger, rule), strict=True):
        counts = dict(zip(round_.entry.answered, round_.entry.sample_counts, strict=True))
        before = arrays_of(round_.global_model)
        for size in range(1, len(counts) + 1):
            for members in itertools.combinations(round_.entry.participants, size):
                models = [arrays_of(round_.client_models[k]) for k in members]
                made, _ = rule.aggregate(before, models, [counts[k] for k in members], step.state)
                found[round_.entry.round_index, frozenset(members)] = loss(before) - loss(made)
    return found


@pytest.mark.parametrize("kind", [LoopOracle, FastOracle])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_utilities_are_those_of_the_servers_own_rule(tmp_path, rule, kind):
    ledger = federation(tmp_path / "l", rule, recorded=rule)
    made = observed(ledger, kind(task()))
    for (t, members), expected in by_hand(ledger, rule).items():
        game = made.game(t)
        found = game.utilities(np.isin(game.clients, list(members))[None]).sum()
        assert found == pytest.approx(expected, abs=1e-6)


def test_a_private_servers_noise_belongs_to_every_coalition_of_its_round(tmp_path):
    ledger = federation(tmp_path / "l", WeightedMean())
    noisy = Private(WeightedMean(), None, 1e-9)
    utilities = by_hand(ledger, noisy)
    everyone = frozenset(ledger.entries[0].participants)
    gained = loss(arrays_of(ledger.open_round(0).global_model)) - loss(arrays_of(ledger.open_round(1).global_model))
    assert utilities[0, everyone] == pytest.approx(gained, abs=1e-6)


def test_a_server_that_does_something_else_is_refused_unless_asked_for_as_an_average(tmp_path):
    ledger = federation(tmp_path / "l", Median())
    with pytest.raises(RuleError, match="not the weighted mean"):
        observed(ledger)
    made = observed(ledger, as_average=True)
    assert "values are those of a server that follows it (--as-average)" in made.notes[0]
    averaged = federation(tmp_path / "mean", WeightedMean())
    assert observed(averaged, as_average=True).notes == observed(averaged).notes == ()


def test_a_header_that_claims_a_simulation_spares_nobody_the_check(tmp_path):
    federation(tmp_path / "l", Median())
    header = tmp_path / "l" / "federation.json"
    claims = json.loads(header.read_text()) | {"settings": {"simulation": {}, "test_sha256": "0" * 64}}
    forged = rewritten(tmp_path / "l", tmp_path / "forged", claims)
    with pytest.raises(RuleError, match="not the weighted mean"):
        observed(forged)


def rewritten(source, folder, header, **changes):
    """The same round files under another header, or with other lines, and a chain that fits."""
    shutil.copytree(source, folder)
    (folder / "federation.json").write_bytes(json_bytes(header))
    chain, lines = hashlib.sha256(json_bytes(header)).hexdigest(), b""
    for line, _ in read_lines(source, read_header(source)[1]):
        changed = msgspec.structs.replace(line, **changes) if isinstance(line, RoundEntry) else line
        written, chain = line_bytes(changed, chain)
        lines += written
    (folder / "manifest.jsonl").write_bytes(lines)
    return Ledger.verify(folder)


def test_the_same_models_in_a_round_of_another_number_are_measured_anew(tmp_path):
    """FedAdam's rate depends on the number, which is not in the file of the models."""
    rule = Adaptive("adam")
    first = federation(tmp_path / "l", rule, recorded=rule, n_rounds=1, is_closed=False)
    header = json.loads((first.folder / "federation.json").read_text())
    other = rewritten(first.folder, tmp_path / "other", header, number=7)
    found = [fedworth.Federation(ledger, task()).value("fedsv").values for ledger in (first, other)]
    work = fedworth.WorkSettings(cache=False)
    assert found[1].tolist() == fedworth.Federation(other, task(), work=work).value("fedsv").values.tolist()
    assert np.abs(found[1] - found[0]).max() > 1e-3


def test_the_tasks_rule_is_stronger_than_the_headers(tmp_path):
    ledger = federation(tmp_path / "l", Median(), recorded=Krum())
    with pytest.raises(RuleError, match="not the krum"):
        observed(ledger)
    assert observed(ledger, LoopOracle(task(rule=Median()))).notes == ()


def test_an_open_ledger_is_valued_and_says_what_could_not_be_checked(tmp_path):
    ledger = federation(tmp_path / "l", WeightedMean(), is_closed=False)
    assert "could not be checked: the ledger is not closed" in observed(ledger).notes[0]


@pytest.mark.parametrize("rule", [ServerMomentum(0.7, 0.9), Median()], ids=str)
def test_other_measures_follow_the_rule_too(tmp_path, rule):
    ledger = federation(tmp_path / "l", rule, recorded=rule)
    both = observed(ledger, LoopOracle(task(), also=("accuracy",)), weighting="samples").game(1)
    alone = observed(ledger, LoopOracle(task(), "accuracy"), weighting="samples").game(1)
    pair = np.arange(len(both.clients))[None] < 2
    np.testing.assert_allclose(both.columns(pair)[:, 1], alone.utilities(pair)[:, 0], atol=1e-12)


@pytest.mark.parametrize("rule", [Median(), Private(WeightedMean(), None, 0.05)], ids=str)
def test_kept_utilities_belong_to_the_rule(tmp_path, rule):
    ledger = federation(tmp_path / "l", WeightedMean(), n_rounds=1, is_closed=False)
    keys = []
    for oracle in (LoopOracle(task()), LoopOracle(task(rule=rule)), LoopOracle(task())):
        made = federation_of(ledger, oracle, "samples", is_kept=True)
        assert made.store is not None
        keys.append(len(made.store.load(0)[0]))
        game = made.game(0)
        game.utilities(np.ones((1, len(game.clients)), dtype=bool))
        made.keep(0)
    assert keys == [0, 0, 1]


def test_noise_that_becomes_known_is_measured_anew(tmp_path):
    rule = Private(WeightedMean(), None, 0.05)
    shorter = federation(tmp_path / "a", WeightedMean(), n_rounds=1, is_closed=False)
    longer = federation(tmp_path / "b", WeightedMean(), n_rounds=2)
    names = [server_identity(ledger, rule) for ledger in (shorter, longer)]
    assert names[0] != names[1]
    assert server_identity(shorter, Median()) == server_identity(longer, Median())


def server_identity(ledger, rule):
    return Server(LoopOracle(task()), (), rule).identity(ledger, 0)


def test_a_rule_of_ones_own_needs_weights_that_the_server_knows(tmp_path):
    ledger = federation(tmp_path / "l", Median(), recorded=Median())
    with pytest.raises(UsageError, match="weighting 'fixed' is for servers that average"):
        server_of(ledger, LoopOracle(task()), "fixed")


def test_a_second_look_does_not_read_again_what_was_settled(tmp_path, monkeypatch):
    ledger = federation(tmp_path / "l", WeightedMean())
    server_of(ledger, LoopOracle(task()), "samples")
    monkeypatch.setattr(type(ledger), "open_round", lambda *_a, **_k: pytest.fail("read again"))
    assert server_of(Ledger.open(tmp_path / "l"), LoopOracle(task()), "samples").notes == ()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_outputs_are_those_of_the_model_that_the_rule_makes(rule, tmp_path):
    ledger = federation(tmp_path / "l", rule, recorded=rule)
    oracle, round_ = server_of(ledger, LoopOracle(task()), "samples").oracle, ledger.open_round(0)
    everyone = round_.entry.participants
    rows = np.zeros((3, len(ledger.clients)), dtype=bool)
    rows[1, list(everyone)] = rows[2, everyone[0]] = True
    wanted = mixtures(rows, np.arange(10.0, 10.0 + rows.shape[1]), "samples")
    assert isinstance(oracle, OutputOracle)
    found = oracle.outputs(round_, wanted, [np.arange(30)] * 3)
    losses = [torch.nn.functional.cross_entropy(outputs, task().labels).item() for outputs in found]
    assert losses[0] - np.array(losses) == pytest.approx(oracle.utilities(round_, wanted).sum(axis=1), abs=1e-5)


def test_a_rule_that_rounding_decides_names_the_client_whose_model_causes_it(tmp_path):
    ledger = federation(tmp_path / "l", Median(), recorded=Median())
    oracle, round_ = server_of(ledger, LoopOracle(task()), "samples").oracle, ledger.open_round(0)
    last = round_.entry.participants[-1]
    huge = {name: torch.full_like(tensor, 1e8) for name, tensor in round_.client_models[last].items()}
    hostile = replace(round_, client_models={**round_.client_models, last: huge})
    rows = np.zeros((2, len(ledger.clients)), dtype=bool)
    rows[0, round_.entry.participants[0]] = rows[1, last] = True
    with pytest.raises(UtilityError, match=rf"rounding alone .*leave out client {last}"):
        oracle.utilities(hostile, mixtures(rows, np.full(rows.shape[1], 10.0), "samples"))
