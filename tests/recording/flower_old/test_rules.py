"""Every strategy of the old API: training is the same to the bit, the rule replays it, values are those of its own
aggregation."""

import copy
import random

import numpy as np
import pytest
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy as old
from torch.func import functional_call

import fedworth.flower
from fedworth.errors import RuleError
from fedworth.ledger.ledger import Ledger
from fedworth.task.replay import check_ledger
from fedworth.task.rules import WeightedMean, rule_of
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings
from tests.recording.flower_old.in_process import N_CLIENTS, manager, start, train
from tests.support.games import shapley_by_definition

NAMES = ("weight", "bias")


def options():
    return {"fraction_evaluate": 0.0, "min_available_clients": N_CLIENTS, "initial_parameters": start()}


STRATEGIES = {
    "FedAvg": lambda: old.FedAvg(**options()),
    "FedAvg, not in place": lambda: old.FedAvg(inplace=False, **options()),
    "FedProx": lambda: old.FedProx(proximal_mu=0.1, **options()),
    "FaultTolerantFedAvg": lambda: old.FaultTolerantFedAvg(**options()),
    "FedAvgM": lambda: old.FedAvgM(server_learning_rate=0.7, server_momentum=0.9, **options()),
    "FedAdam": lambda: old.FedAdam(**options()),
    "FedYogi": lambda: old.FedYogi(**options()),
    "FedAdagrad": lambda: old.FedAdagrad(**options()),
    "FedMedian": lambda: old.FedMedian(**options()),
    "FedTrimmedAvg": lambda: old.FedTrimmedAvg(beta=0.25, **options()),
    "Krum": lambda: old.Krum(num_malicious_clients=1, **options()),
    "MultiKrum": lambda: old.Krum(num_malicious_clients=1, num_clients_to_keep=2, **options()),
    "clipping": lambda: old.DifferentialPrivacyServerSideFixedClipping(old.FedAvg(**options()), 0.0, 0.3, N_CLIENTS),
}
NOISY = {
    "server": lambda: old.DifferentialPrivacyServerSideFixedClipping(old.FedAvg(**options()), 0.5, 0.3, N_CLIENTS),
    "client": lambda: old.DifferentialPrivacyClientSideFixedClipping(old.FedAvg(**options()), 0.5, 0.3, N_CLIENTS),
}
UNKNOWN = {
    "QFedAvg": lambda: old.QFedAvg(q_param=0.5, evaluate_fn=lambda *_: (1.0, {}), **options()),
    "adaptive clipping": lambda: old.DifferentialPrivacyServerSideAdaptiveClipping(
        old.FedAvg(**options()), 0.1, N_CLIENTS
    ),
}
MEANS = {"FedAvg", "FedAvg, not in place", "FedProx", "FaultTolerantFedAvg"}


def recorded(strategy, folder, **also):
    recording = fedworth.flower.record(strategy, ledger=folder, names=NAMES, **also)
    parameters = train(recording)
    recording.close()
    return Ledger.verify(folder), parameters


def task():
    rng = torch.Generator().manual_seed(1)
    return Task(torch.nn.Linear(4, 3), torch.randn(30, 4, generator=rng), torch.randint(3, (30,), generator=rng))


def loss(model, on):
    logits = functional_call(
        on.module, {name: torch.as_tensor(array).float() for name, array in model.items()}, (on.inputs,)
    )
    return float(torch.nn.functional.cross_entropy(logits.double(), on.labels))


@pytest.mark.parametrize("name", [*STRATEGIES, *NOISY, *UNKNOWN])
def test_training_with_recording_is_training_without_to_the_bit(tmp_path, name):
    make = {**STRATEGIES, **NOISY, **UNKNOWN}[name]
    _, parameters = recorded(make(), tmp_path / "l")
    assert parameters.tensors == train(make()).tensors


@pytest.mark.parametrize("name", [*STRATEGIES, *NOISY])
def test_a_rule_replays_what_the_strategy_made(tmp_path, name):
    ledger, _ = recorded({**STRATEGIES, **NOISY}[name](), tmp_path / "l")
    checked = check_ledger(ledger, rule_of(ledger))
    checked.refuse_others()
    assert (checked.n_same, checked.notes()) == (2, ())
    if name not in MEANS:
        with pytest.raises(RuleError, match="not the weighted mean of the participants' models"):
            check_ledger(ledger, WeightedMean()).refuse_others()


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_strategy_whose_rule_is_not_known_is_refused_and_not_taken_for_the_mean(tmp_path, name):
    ledger, _ = recorded(UNKNOWN[name](), tmp_path / "l")
    with pytest.raises(RuleError, match="name the server's rule"):
        check_ledger(ledger, rule_of(ledger)).refuse_others()


def by_flower(strategy, ledger, on):
    """Every round's utilities, each coalition aggregated by Flower's own strategy in the state it had in that round."""
    clients, rows = manager(), []
    proxies = list(clients.all().values())
    for round_ in ledger.rounds():
        number = round_.entry.number
        sent = ndarrays_to_parameters([round_.global_model[name].numpy() for name in NAMES])
        strategy.configure_fit(number, sent, clients)
        answers = [
            FitRes(
                Status(Code.OK, ""),
                ndarrays_to_parameters([round_.client_models[k][name].numpy() for name in NAMES]),
                round_.entry.sample_counts[k],
                {},
            )
            for k in range(N_CLIENTS)
        ]
        row = np.zeros(2**N_CLIENTS)
        for coalition in range(1, 2**N_CLIENTS):
            chosen = [(proxies[k], copy.deepcopy(answers[k])) for k in range(N_CLIENTS) if coalition >> k & 1]
            made, _ = copy.deepcopy(strategy).aggregate_fit(number, chosen, [])
            arrays = dict(zip(NAMES, parameters_to_ndarrays(made), strict=True))
            row[coalition] = loss(round_.global_model, on) - loss(arrays, on)
        strategy.aggregate_fit(number, list(zip(proxies, answers, strict=True)), [])
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("name", STRATEGIES)
def test_values_are_those_of_a_brute_force_replay_of_flowers_own_aggregation(tmp_path, name):
    ledger, _ = recorded(STRATEGIES[name](), tmp_path / "l")
    settings = ValuationSettings(oracle="loop", weighting="samples")
    values = Federation(ledger, task(), settings, work=WorkSettings(cache=False)).value("fedsv").values
    random.seed(0)
    strategy = STRATEGIES[name]()
    strategy.initialize_parameters(manager())
    by_hand = sum(shapley_by_definition(row) for row in by_flower(strategy, ledger, task()))
    np.testing.assert_allclose(values, by_hand, atol=1e-6)
    gained = loss(ledger.open_round(0).global_model, task()) - loss(ledger.final_model(), task())
    assert values.sum() == pytest.approx(gained, abs=1e-5)
