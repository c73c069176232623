"""Every rule against Flower's own strategy: the recorded models are replayed to float precision."""

import copy
import random

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from torch.func import functional_call

import fedworth.flower
from fedworth.errors import RuleError
from fedworth.ledger.ledger import Ledger
from fedworth.recording.flower import strategy_rule, strategy_weight_metric
from fedworth.task.replay import check_ledger, replayed, server_weights
from fedworth.task.rules import Adaptive, WeightedMean, arrays_of, noise_of, rule_from, rule_of
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings
from tests.recording.flower.in_process import InProcessGrid
from tests.support.games import shapley_by_definition

N_NODES, N_ROUNDS = 5, 4
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
UNKNOWN = {
    "QFedAvg": lambda: flower.QFedAvg(client_learning_rate=0.1, q=0.5, train_loss_key="loss", **COMMON),
    "Bulyan": lambda: flower.Bulyan(num_malicious_nodes=0, **COMMON),
    "adaptive clipping": lambda: flower.DifferentialPrivacyServerSideAdaptiveClipping(
        flower.FedAvg(**COMMON), 0.1, N_NODES
    ),
}


def start():
    rng = torch.Generator().manual_seed(0)
    return ArrayRecord({"weight": torch.randn(5, 8, generator=rng), "bias": torch.randn(5, generator=rng)})


def task():
    rng = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(40, 8, generator=rng), torch.randint(5, (40,), generator=rng)
    return Task(torch.nn.Linear(8, 5), inputs, labels)


def trained(message, context):
    """Each node draws towards a point of its own; no two weigh the same."""
    partition = context.node_config["partition-id"]
    rng = np.random.default_rng([partition, message.content["config"]["server-round"]])
    arrays = {}
    for name, array in message.content["arrays"].items():
        w = array.numpy()
        arrays[name] = (w + 0.3 * (partition - w) + 0.05 * rng.normal(size=w.shape)).astype(w.dtype)
    record = ArrayRecord({name: torch.from_numpy(array) for name, array in arrays.items()})
    metrics = MetricRecord({"weight": 1.5 + partition, "num-examples": 7, "loss": 0.5})
    return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


def plain_grid(*mods):
    app = ClientApp(mods=list(mods))
    app.train()(trained)
    return InProcessGrid(app, N_NODES)


def arrays_after(strategy, grid, n_rounds):
    random.seed(0)
    np.random.seed(0)  # what Flower draws its noise from
    return strategy.start(grid=grid, initial_arrays=start(), num_rounds=n_rounds, timeout=60).arrays


def federation(strategy, folder, *, n_rounds=N_ROUNDS, **options):
    grid = fedworth.flower.record(
        plain_grid(fedworth.flower.identity), ledger=folder, **{"strategy": strategy, **options}
    )
    grid.close(arrays_after(strategy, grid, n_rounds))
    return Ledger.verify(folder)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_rule_replays_what_flowers_strategy_made(tmp_path, name):
    ledger = federation(STRATEGIES[name](), tmp_path / "l")
    rule = rule_of(ledger)
    assert rule == strategy_rule(STRATEGIES[name]())
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


@pytest.mark.parametrize("name", [*STRATEGIES, *NOISY, *UNKNOWN])
def test_training_with_recording_is_training_without_to_the_bit(tmp_path, name):
    make = {**STRATEGIES, **NOISY, **UNKNOWN}[name]
    expected = arrays_after(make(), plain_grid(), 2)
    found = federation(make(), tmp_path / "l", n_rounds=2).final_model()
    assert all((found[key].numpy() == array.numpy()).all() for key, array in expected.items())


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_strategy_whose_rule_is_not_known_is_refused_and_not_taken_for_the_mean(tmp_path, name):
    ledger = federation(UNKNOWN[name](), tmp_path / "l", n_rounds=2)
    with pytest.raises(RuleError, match="name the server's rule"):
        check_ledger(ledger, rule_of(ledger)).refuse_others()


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


def loss(model, on):
    model = {name: tensor.float() for name, tensor in model.items()}  # FedAdam's come back in double precision
    logits = functional_call(on.module, model, (on.inputs,))
    return float(torch.nn.functional.cross_entropy(logits.double(), on.labels))


def replies(round_, members):
    """What the members of a coalition sent, as Flower hands it to a strategy."""
    counts = dict(zip(round_.entry.answered, round_.entry.sample_counts, strict=True))
    sent = Message(content=RecordDict(), dst_node_id=1, message_type="train")
    return [
        Message(
            content=RecordDict(
                {"arrays": ArrayRecord(dict(round_.client_models[k])), "metrics": MetricRecord({"weight": counts[k]})}
            ),
            reply_to=sent,
        )
        for k in members
    ]


def by_flower(strategy, ledger, on, *, noisy=False):
    """Every round's utilities, each coalition aggregated by Flower's own strategy in the state it had in that round; if
    `noisy`, with what the recorded next model has beside the strategy's."""
    grid = InProcessGrid(ClientApp(), N_NODES)
    rows = []
    models = [round_.global_model for round_ in ledger.rounds()]
    for round_, after in zip(ledger.rounds(), [*models[1:], ledger.final_model()], strict=True):
        number, members = round_.entry.number, round_.entry.participants
        list(strategy.configure_train(number, ArrayRecord(dict(round_.global_model)), ConfigRecord(), grid))
        row = np.zeros(2**N_NODES)
        for coalition in range(1, 2**N_NODES):
            chosen = [k for k in members if coalition >> k & 1]
            made = aggregated(copy.deepcopy(strategy), number, round_, chosen)
            if noisy:
                whole = aggregated(copy.deepcopy(strategy), number, round_, members)
                made = {key: made[key] + after[key] - whole[key] for key in made}
            row[coalition] = loss(round_.global_model, on) - loss(made, on)
        strategy.aggregate_train(number, replies(round_, members))
        rows.append(row)
    return np.array(rows)


def aggregated(strategy, number, round_, members):
    arrays, _ = strategy.aggregate_train(number, replies(round_, members))
    return arrays.to_torch_state_dict()


@pytest.mark.parametrize(("name", "noiseless"), [("server", "clipping"), ("client", "FedAvg")])
def test_under_noise_values_are_those_of_the_rounds_own_noise_for_every_coalition(tmp_path, name, noiseless):
    ledger = federation(NOISY[name](), tmp_path / "l", n_rounds=2)
    values = Federation(ledger, task(), work=WorkSettings(cache=False)).value("fedsv").values
    expected = by_flower(STRATEGIES[noiseless](), ledger, task(), noisy=True)
    np.testing.assert_allclose(values, sum(shapley_by_definition(row) for row in expected), atol=1e-6)


@pytest.mark.parametrize("oracle", ["fast", "loop"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_values_are_those_of_a_brute_force_replay_of_flowers_own_aggregation(tmp_path, name, oracle):
    ledger = federation(STRATEGIES[name](), tmp_path / "l", n_rounds=2)
    measured = Federation(ledger, task(), ValuationSettings(oracle=oracle), work=WorkSettings(cache=False))
    expected = by_flower(STRATEGIES[name](), ledger, task())
    coalitions = (np.arange(1, 2**N_NODES)[:, None] >> np.arange(N_NODES) & 1).astype(bool)  # by their bits
    for t, row in enumerate(expected):
        np.testing.assert_allclose(measured.game(t).utilities(coalitions).sum(axis=1), row[1:], atol=1e-6)
    by_hand = sum(shapley_by_definition(row) for row in expected)
    np.testing.assert_allclose(measured.value("fedsv").values, by_hand, atol=1e-6)
    gained = loss(ledger.open_round(0).global_model, task()) - loss(ledger.final_model(), task())
    assert measured.value("fedsv").values.sum() == pytest.approx(gained, abs=1e-5)


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
    assert strategy_rule(strategy) is None
    assert strategy_weight_metric(strategy) == "weight"
    ledger = federation(strategy, tmp_path / "l")
    with pytest.raises(RuleError):
        check_ledger(ledger, rule_of(ledger)).refuse_others()


def test_a_derived_class_that_aggregates_as_its_parent_is_known():
    class Chooser(flower.FedAdam):  # type: ignore[misc]
        """Picks its clients in a way of its own."""

        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, config, grid)

    assert strategy_rule(Chooser(eta=0.3)) == Adaptive("adam", eta=0.3)
