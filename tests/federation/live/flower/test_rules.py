"""Every rule against Flower's own strategy: the recorded models are replayed to float precision."""

import random

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

import fedworth.flower
from fedworth.errors import RuleError
from fedworth.federation.live.strategies import rule_seen, weights_seen
from fedworth.federation.rules.check import check_ledger
from fedworth.federation.rules.documents import rule_from, rule_of
from fedworth.federation.rules.optimizers import Adaptive
from fedworth.federation.rules.private import noise_of
from fedworth.federation.rules.replay import replayed, server_weights
from fedworth.federation.rules.rule import WeightedMean, arrays_of
from fedworth.ledger.ledger import verify_ledger
from tests.federation.live.flower.in_process import InProcessGrid

N_NODES, N_ROUNDS = 6, 4
COMMON = {"fraction_evaluate": 0.0, "weighted_by_key": "weight"}
STRATEGIES = {
    "FedAvg": lambda: flower.FedAvg(**COMMON),
    "FedProx": lambda: flower.FedProx(proximal_mu=0.1, **COMMON),
    "FedAvgM": lambda: flower.FedAvgM(server_learning_rate=0.7, server_momentum=0.9, **COMMON),
    "FedAdam": lambda: flower.FedAdam(**COMMON),
    "FedYogi": lambda: flower.FedYogi(**COMMON),
    "FedAdagrad": lambda: flower.FedAdagrad(**COMMON),
    "FedMedian": lambda: flower.FedMedian(**COMMON),
    "FedTrimmedAvg": lambda: flower.FedTrimmedAvg(beta=0.2, **COMMON),
    "Krum": lambda: flower.Krum(num_malicious_nodes=1, **COMMON),
    "MultiKrum": lambda: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3, **COMMON),
    "clipping": lambda: flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(**COMMON), 0.0, 0.3, N_NODES),
}
NOISY = {
    "server": lambda: flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(**COMMON), 0.5, 0.3, N_NODES),
    "client": lambda: flower.DifferentialPrivacyClientSideFixedClipping(flower.FedAvg(**COMMON), 0.5, 0.3, N_NODES),
}


def start():
    rng = torch.Generator().manual_seed(0)
    return ArrayRecord({"w": torch.randn(8, 5, generator=rng), "b": torch.randn(5, generator=rng)})


def trained(message, context):
    """Each node draws towards a point of its own; no two weigh the same."""
    partition = context.node_config["partition-id"]
    rng = np.random.default_rng([partition, message.content["config"]["server-round"]])
    arrays = {}
    for name, array in message.content["arrays"].items():
        w = array.numpy()
        arrays[name] = (w + 0.3 * (partition - w) + 0.05 * rng.normal(size=w.shape)).astype(w.dtype)
    record = ArrayRecord({name: torch.from_numpy(array) for name, array in arrays.items()})
    metrics = MetricRecord({"weight": 1.5 + partition, "num-examples": 7})
    return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


def federation(strategy, folder, **options):
    random.seed(0)
    np.random.seed(0)  # what Flower draws its noise from
    app = ClientApp(mods=[fedworth.flower.identity])
    app.train()(trained)
    grid = fedworth.flower.record(InProcessGrid(app, N_NODES), ledger=folder, strategy=strategy, **options)
    result = strategy.start(grid=grid, initial_arrays=start(), num_rounds=N_ROUNDS, timeout=60)
    grid.close(result.arrays)
    return verify_ledger(folder)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_rule_replays_what_flowers_strategy_made(tmp_path, name):
    ledger = federation(STRATEGIES[name](), tmp_path / "l")
    rule = rule_of(ledger)
    assert rule == rule_seen(STRATEGIES[name]())
    models = [round_.global_model for round_ in ledger.rounds()]
    steps = replayed(ledger, rule)
    for round_, after, step in zip(ledger.rounds(), [*models[1:], ledger.final_model()], steps, strict=True):
        members = [arrays_of(round_.client_models[k]) for k in round_.entry.participants]
        found, _ = rule.aggregate(arrays_of(round_.global_model), members, server_weights(ledger, round_), step.state)
        for tensor, expected in after.items():
            np.testing.assert_allclose(found[tensor], expected.numpy(), rtol=1e-6, atol=1e-6)
    checked = check_ledger(ledger, rule)
    checked.refuse_others()
    assert [check.is_same for check in checked.checks] == [True] * N_ROUNDS
    assert checked.notes() == ()


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"FedAvg", "FedProx"}))
def test_a_server_that_does_not_average_is_found_out(tmp_path, name):
    ledger = federation(STRATEGIES[name](), tmp_path / "l")
    checked = check_ledger(ledger, WeightedMean())
    with pytest.raises(RuleError, match="not the weighted mean of the participants' models"):
        checked.refuse_others()
    assert checked.largest_gap > 0.01


@pytest.mark.parametrize("name", NOISY)
def test_noise_is_checked_by_its_size_and_belongs_to_the_round(tmp_path, name):
    ledger = federation(NOISY[name](), tmp_path / "l")
    rule = rule_of(ledger)
    check_ledger(ledger, rule).refuse_others()
    quieter = rule_from({**rule.document(), "noise": noise_of(rule) / 4})
    with pytest.raises(RuleError):
        check_ledger(ledger, quieter).refuse_others()
    models = [round_.global_model for round_ in ledger.rounds()]
    for round_, after, step in zip(
        ledger.rounds(), [*models[1:], ledger.final_model()], replayed(ledger, rule), strict=True
    ):
        members = [arrays_of(round_.client_models[k]) for k in round_.entry.participants]
        found, _ = rule.aggregate(arrays_of(round_.global_model), members, server_weights(ledger, round_), step.state)
        for tensor, expected in after.items():
            np.testing.assert_allclose(found[tensor], expected.numpy(), rtol=1e-6, atol=1e-6)


def test_the_metric_that_the_strategy_weights_by_is_what_is_recorded(tmp_path):
    ledger = federation(STRATEGIES["FedAvg"](), tmp_path / "seen")
    assert sorted(ledger.sample_counts().values()) == [1.5 + k for k in range(N_NODES)]
    unseen = federation(STRATEGIES["FedAvg"](), tmp_path / "other", weighted_by="num-examples")
    with pytest.raises(RuleError, match="weighted mean"):
        check_ledger(unseen, WeightedMean()).refuse_others()


class OfOnesOwn(flower.FedAvg):  # type: ignore[misc]
    """Averages, and then halves what came of it."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        halved = {name: torch.from_numpy(0.5 * array.numpy()) for name, array in arrays.items()}
        return ArrayRecord(halved), metrics


def test_a_strategy_of_ones_own_is_not_taken_for_the_one_it_derives_from(tmp_path):
    strategy = OfOnesOwn(**COMMON)
    assert rule_seen(strategy) is None
    assert weights_seen(strategy) == "weight"
    ledger = federation(strategy, tmp_path / "l")
    with pytest.raises(RuleError):
        check_ledger(ledger, rule_of(ledger)).refuse_others()


def test_a_derived_class_that_aggregates_as_its_parent_is_known():
    class Chooser(flower.FedAdam):  # type: ignore[misc]
        """Picks its clients in a way of its own."""

        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, config, grid)

    assert rule_seen(Chooser(eta=0.3)) == Adaptive("adam", eta=0.3)
