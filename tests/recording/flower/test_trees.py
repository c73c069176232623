"""Federations of trees: what FedXgbBagging appends is recorded as margins, and valued as if trees were appended."""

import itertools
import json
import math
import random

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAvg
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic
from flwr.serverapp.strategy.strategy_utils import aggregate_bagging

import fedworth.flower
from fedworth.errors import UsageError
from tests.recording.flower.in_process import InProcessGrid

xgboost = pytest.importorskip("xgboost")
N_CLIENTS = 4
PARAMS = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3, "nthread": 1, "seed": 1}


def rows(seed, n):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, 5))
    return inputs, (inputs[:, 0] * inputs[:, 1] + 0.3 * rng.normal(size=n) > 0).astype(float)


X_TEST, Y_TEST = rows(99, 80)
TREES = fedworth.Trees(X_TEST, Y_TEST)


def app(n_local):
    """As in Flower's own example: some boosting rounds on top of the global model, and only these are sent."""
    made = ClientApp(mods=[fedworth.flower.identity])

    @made.train()
    def train(message, context):
        client = int(context.node_config["partition-id"])
        data = xgboost.DMatrix(*rows(client, 60 + 20 * client))
        sent = message.content["arrays"]["0"].numpy().tobytes()
        if sent:
            booster = xgboost.Booster(params=PARAMS)
            booster.load_model(bytearray(sent))
            for _ in range(n_local):
                booster.update(data, booster.num_boosted_rounds())
            booster = booster[booster.num_boosted_rounds() - n_local : booster.num_boosted_rounds()]
        else:
            booster = xgboost.train(PARAMS, data, num_boost_round=n_local)
        trees = np.frombuffer(booster.save_raw("json"), dtype=np.uint8)
        metrics = MetricRecord({"num-examples": data.num_row()})
        content = RecordDict({"arrays": ArrayRecord([trees]), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return made


def federation(folder, n_local=1, *, n_rounds=3, is_recorded=True):
    """(the final trees, the replies of each round in their order, the trees that each round began with)."""
    random.seed(0)
    strategy = FedXgbBagging(fraction_train=0.75, fraction_evaluate=0.0, min_train_nodes=3)
    grid = InProcessGrid(app(n_local), N_CLIENTS)
    kept, starts = [], []
    plain = grid.send_and_receive

    def watched(messages, **options):
        messages = list(messages)
        replies = plain(messages, **options)
        if not messages:  # nobody evaluates
            return replies
        starts.append(messages[0].content["arrays"]["0"].numpy().tobytes())
        kept.append({r.metadata.src_node_id - 1000: r.content["arrays"]["0"].numpy().tobytes() for r in replies})
        return replies

    grid.send_and_receive = watched  # type: ignore[method-assign]
    used = fedworth.flower.record(grid, ledger=folder, strategy=strategy, trees=TREES) if is_recorded else grid
    arrays = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
    result = strategy.start(grid=used, initial_arrays=arrays, num_rounds=n_rounds, timeout=60)
    if is_recorded:
        used.close(result.arrays)
    return result.arrays["0"].numpy().tobytes(), kept, starts


def loss(trees):
    booster = xgboost.Booster()
    booster.load_model(bytearray(trees))
    margins = booster.predict(xgboost.DMatrix(X_TEST), output_margin=True).astype(np.float64)
    return float(np.mean(np.logaddexp(0, margins) - Y_TEST * margins))


def shapley_by_brute_force(kept, starts):
    """FedSV by appending the trees of every coalition with Flower's own function."""
    values = np.zeros(N_CLIENTS)
    for replies, start in zip(kept, starts, strict=True):
        players, base = list(replies), start or _without_trees(replies)

        def utility(members, base=base, replies=replies, players=players):
            trees = base
            for k in players:  # in the order of the replies
                if k in members:
                    trees = aggregate_bagging(trees, replies[k])
            return loss(base) - loss(trees)

        for k in players:
            others = [j for j in players if j != k]
            for size in range(len(others) + 1):
                weight = 1 / (len(players) * math.comb(len(others), size))
                for members in itertools.combinations(others, size):
                    values[k] += weight * (utility({*members, k}) - utility({*members}))
    return values


def _without_trees(replies):
    """A model of the first reply's base score alone: its first boosting round, with leaves of zero."""
    model = json.loads(next(iter(replies.values())))
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        leaves = [left == -1 for left in tree["left_children"]]
        numbers = zip(tree["split_conditions"], leaves, strict=True)
        tree["split_conditions"] = [0.0 if is_leaf else number for number, is_leaf in numbers]
    return json.dumps(model).encode()


@pytest.mark.parametrize("n_local", [1, 2])
def test_values_are_those_of_appending_every_coalitions_trees(tmp_path, n_local):
    final, kept, starts = federation(tmp_path / "l", n_local)
    assert final == federation(None, n_local, is_recorded=False)[0]  # recording changes nothing
    report = fedworth.report_on(
        fedworth.Ledger.verify(tmp_path / "l"), TREES.task(), methods=["fedsv", "comfedsv-models"]
    )
    assert report.refusals == ()
    if (
        n_local == 1
    ):  # with more, the first reply of all counts whole, which no brute force with Flower's function shows
        found = {line.client: line.value for line in report.valued_by("fedsv")}
        expected = shapley_by_brute_force(kept, starts)
        assert found == pytest.approx(
            {client: expected[int(client.removeprefix("partition-"))] for client in found}, abs=2e-6
        )


def test_cyclic_boosting_is_refused_with_the_reason(tmp_path):
    with pytest.raises(UsageError, match="no coalition of a round can be formed"):
        fedworth.flower.record(InProcessGrid(app(1), 2), ledger=tmp_path / "l", strategy=FedXgbCyclic(), trees=TREES)


def test_trees_are_not_recorded_at_a_strategy(tmp_path):
    with pytest.raises(UsageError, match="trees are recorded at the grid"):
        fedworth.flower.record(FedAvg(), ledger=tmp_path / "l", trees=TREES)
