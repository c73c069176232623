"""Rules are pure; a linear one is the weighted mean of its members' contributions; each has its closed form."""

import json

import numpy as np
import pytest
import torch

from fedworth.errors import LedgerError, UsageError
from fedworth.task.rules import (
    Adaptive,
    Krum,
    LinearRule,
    Median,
    Private,
    ProductMean,
    ServerMomentum,
    State,
    TrimmedMean,
    WeightedMean,
    arrays_of,
    model_of,
    rule_from,
    rule_name,
    weighted_mean,
)

RULES = [
    WeightedMean(),
    ServerMomentum(0.5, 0.9),
    Adaptive("adam"),
    Adaptive("yogi", eta=0.01),
    Adaptive("adagrad"),
    Median(),
    TrimmedMean(0.25),
    Krum(1),
    Krum(1, 3),
    Private(WeightedMean(), 0.5, 0.1),
    Private(ServerMomentum(0.5, 0.9), None, 0.1),
]
LINEAR = [rule for rule in RULES if isinstance(rule, LinearRule)]


def models(n=5, seed=0):
    rng = np.random.default_rng(seed)
    return [{"w": rng.normal(size=(2, 3)), "b": rng.normal(size=3)} for _ in range(n)]


def memory(seed=9):
    velocity, first, second, noise = models(4, seed)
    return {"velocity": velocity, "first": first, "second": {k: v**2 for k, v in second.items()}, "noise": noise}


def name_of(rule):
    return rule_name(rule)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_is_what_its_document_says(rule):
    assert rule_from(rule.document()) == rule


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_changes_nothing_that_it_is_given(rule):
    start, *given = models(6)
    kept = [{name: array.copy() for name, array in model.items()} for model in (start, *given)]
    state = State(3, memory())
    first = rule.aggregate(start, given, [1, 2, 3, 4, 5], state)
    again = rule.aggregate(start, given, [1, 2, 3, 4, 5], state)
    for before, after in zip(kept, (start, *given), strict=True):
        assert all((before[name] == after[name]).all() for name in before)
    assert all((first[0][name] == again[0][name]).all() for name in start)


@pytest.mark.parametrize("rule", LINEAR, ids=name_of)
def test_a_linear_rule_is_the_mean_of_its_members_contributions(rule):
    start, *given = models(6)
    state, weights = State(3, memory()), [1.0, 2.0, 3.0, 4.0, 5.0]
    expected, _ = rule.aggregate(start, given, weights, state)
    found = weighted_mean([rule.contribution(start, model, state) for model in given], weights)
    for name in start:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def test_what_is_not_linear_says_so():
    assert [name_of(rule).split()[0] for rule in LINEAR] == ["weighted", "momentum", "private", "private"]


def test_momentum_adds_up_over_rounds():
    start, model = {"w": np.zeros(1)}, {"w": np.ones(1)}
    rule, state = ServerMomentum(1.0, 0.5), State()
    first, state = rule.aggregate(start, [model], [1], state)
    second, _ = rule.aggregate(start, [model], [1], state)
    assert (float(first["w"][0]), float(second["w"][0])) == (1.0, 1.5)


def test_adagrad_steps_by_the_sign_where_tau_is_small():
    after, state = Adaptive("adagrad", eta=0.1, tau=1e-12).aggregate(
        {"w": np.zeros(2)}, [{"w": np.array([3.0, -0.5])}], [1], State()
    )
    np.testing.assert_allclose(after["w"], [0.1, -0.1])
    np.testing.assert_allclose(state.memory["second"]["w"], [9.0, 0.25])


def test_adam_is_corrected_by_the_rounds_own_number():
    start, model = {"w": np.zeros(1)}, {"w": np.ones(1)}
    early, late = (Adaptive().aggregate(start, [model], [1], State(number))[0]["w"] for number in (1, 1000))
    rate = 0.1 * np.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    np.testing.assert_allclose(early, rate * 0.1 / (0.1 + 1e-3))
    np.testing.assert_allclose(late, 0.1 * 0.1 / (0.1 + 1e-3), rtol=1e-4)


def test_median_and_trimmed_mean_leave_an_outlier_out():
    given = [{"w": np.array([value])} for value in (1.0, 2.0, 3.0, 1000.0)]
    assert Median().aggregate(given[0], given, [1] * 4, State())[0]["w"] == 2.5
    assert TrimmedMean(0.25).aggregate(given[0], given, [1] * 4, State())[0]["w"] == 2.5


def test_krum_takes_the_model_amid_the_others_and_multikrum_weighs_them():
    given = [{"w": np.array([value])} for value in (0.0, 1.0, 1.1, 50.0)]
    assert Krum(1).selected(given) == [1]
    found, _ = Krum(1, 2).aggregate(given[0], given, [1, 1, 3, 1], State())
    np.testing.assert_allclose(found["w"], (1.0 + 3 * 1.1) / 4)
    assert Krum(1).selected(given[:1]) == [0]


def test_clipping_shortens_long_updates_alone_and_noise_is_the_same_for_all():
    start = {"w": np.zeros(2)}
    short, long = {"w": np.array([0.3, 0.4])}, {"w": np.array([30.0, 40.0])}
    rule = Private(WeightedMean(), 1.0, 0.1)
    noise = {"noise": {"w": np.array([0.25, -0.25])}}
    np.testing.assert_allclose(rule.aggregate(start, [short], [1], State(1, noise))[0]["w"], [0.55, 0.15])
    np.testing.assert_allclose(rule.aggregate(start, [long], [1], State())[0]["w"], [0.6, 0.8])
    after, state = rule.aggregate(start, [start], [1], State(1, noise))
    assert (after["w"] == noise["noise"]["w"]).all()
    assert "noise" not in state.memory


def test_half_precision_and_integers_come_back_as_they_were():
    model = {"h": torch.tensor([0.5, 1.5], dtype=torch.bfloat16), "n": torch.tensor(7)}
    back = model_of({name: array + 0.3 for name, array in arrays_of(model).items()}, model)
    assert back["h"].dtype == torch.bfloat16
    assert (int(back["n"]), back["n"].dtype) == (7, torch.int64)


@pytest.mark.parametrize(
    "document", [None, {"name": "magic"}, {"name": "median", "x": 1}, {"name": "trimmed-mean", "beta": 0.7}, []]
)
def test_a_document_that_is_no_rule_is_refused(document):
    with pytest.raises(LedgerError, match="not understood"):
        rule_from(document)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="known are adagrad, adam, yogi"):
        Adaptive("sgd")  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="private rule around Median: expected a mean"):
        rule_from({"name": "private", "inner": {"name": "median"}, "clipping_norm": 1.0, "noise": 0.0})
    with pytest.raises(UsageError, match="expected a mean"):
        Private(Median(), 1.0, 0.0)  # type: ignore[arg-type]


def adapters(n, shape_a, shape_b, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "x.lora_A.weight": rng.normal(size=shape_a),
            "x.lora_B.weight": rng.normal(size=shape_b),
            "b": rng.normal(size=2),
        }
        for _ in range(n)
    ]


def product(model):
    a, b = model["x.lora_A.weight"], model["x.lora_B.weight"]
    return b.reshape(len(b), -1) @ a.reshape(len(a), -1)


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [((2, 7), (5, 2)), ((2, 3, 3, 3), (5, 2, 1, 1)), ((4, 7), (3, 4))],
    ids=["linear", "convolution", "fewer outputs than the rank"],
)
def test_products_are_averaged_and_cut_to_the_rank_as_a_dense_svd_does(shape_a, shape_b):
    start, *given = adapters(5, shape_a, shape_b)
    weights = [1.0, 2.0, 3.0, 4.0]
    made, _ = ProductMean().aggregate(start, given, weights, State())
    u, sizes, v = np.linalg.svd(np.average([product(model) for model in given], axis=0, weights=weights))
    rank = min(shape_a[0], len(sizes))
    np.testing.assert_allclose(product(made), u[:, :rank] * sizes[:rank] @ v[:rank], atol=1e-12)
    np.testing.assert_allclose(made["b"], np.average([model["b"] for model in given], axis=0, weights=weights))
    assert {name: array.shape for name, array in made.items()} == {name: array.shape for name, array in start.items()}
    alone, _ = ProductMean().aggregate(start, given[:1], [3.0], State())
    np.testing.assert_allclose(product(alone), product(given[0]), atol=1e-12)


def test_models_are_compared_by_their_products_at_their_true_distance():
    first, second, third = adapters(3, (2, 7), (5, 2))
    turned = {
        **first,
        "x.lora_A.weight": first["x.lora_A.weight"] * -3,
        "x.lora_B.weight": first["x.lora_B.weight"] / -3,
    }
    found = ProductMean().products([first, turned, second, third])
    np.testing.assert_allclose(found[1]["x.lora_A.weight"], found[0]["x.lora_A.weight"], atol=1e-12)
    for one, other, mine, yours in ((first, second, 0, 2), (second, third, 2, 3)):
        apart = np.linalg.norm(found[mine]["x.lora_A.weight"] - found[yours]["x.lora_A.weight"])
        assert apart == pytest.approx(np.linalg.norm(product(one) - product(other)))


def test_arrays_without_names_need_the_names_of_the_adapters():
    start, *given = adapters(4, (2, 7), (5, 2))
    named = ProductMean(names=tuple(start))
    by_place = [dict(zip("012", model.values(), strict=True)) for model in (start, *given)]
    found, _ = named.aggregate(by_place[0], by_place[1:], [1, 1, 1], State())
    expected, _ = ProductMean().aggregate(start, given, [1, 1, 1], State())
    for one, other in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert rule_from(json.loads(json.dumps(named.document()))) == named
    with pytest.raises(UsageError, match="no tensors called lora_A and lora_B"):
        ProductMean().aggregate(by_place[0], by_place[1:], [1, 1, 1], State())
