"""The settings of a simulated federation, and the learning rates of its rounds."""

import json
from dataclasses import FrozenInstanceError, asdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import UsageError
from fedworth.simulation.settings import Schedule, SimulationSettings, settings_from


def test_the_defaults_are_the_demonstration_without_its_copy():
    demo = SimulationSettings()
    assert (demo.dataset, demo.partition, demo.n_clients, demo.n_participants) == ("digits", "two-class", 10, 3)
    assert demo.copies == ()
    assert demo.everyone_heard
    assert demo.with_truth


def test_settings_survive_their_document_through_json():
    shares = tuple(k % 9 / 10 for k in range(10))
    before = SimulationSettings(noise_shares=shares, hidden=(4, 5), n_steps=None, n_epochs=2)
    after = settings_from(json.loads(json.dumps(before.document())))
    assert after == before
    assert hash(after) == hash(before)


def test_settings_of_later_versions_are_written_only_if_used():
    new: dict[str, Any] = {"drift": 0.5, "noise_from": 3, "availability": (1.0,) * 10, "momentum": 0.9}
    new |= {"proximal": 0.1, "training_seed": 0}
    plain, whole = SimulationSettings().document(), SimulationSettings(**new).document()
    assert whole == {**plain, **new}
    assert settings_from(json.loads(json.dumps(whole))) == SimulationSettings(**new)


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        SimulationSettings().seed = 1  # type: ignore[misc]


def test_settings_hand_on_the_schedule():
    given = SimulationSettings(schedule="decay", rate=0.5, decay=1.0, n_steps=None, n_epochs=3, batch_size=4)
    assert asdict(given.learning_rate())["decay"] == 1.0
    assert given.learning_rate().at(1) == 0.25


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"unknown setting 'n_client': did you mean 'n_clients'\?"):
        settings_from({"n_client": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "two-clas"}, r"unknown partition 'two-clas': did you mean 'two-class'\?"),
        ({"aggregation": "sample"}, r"unknown aggregation 'sample': did you mean 'samples'\?"),
        ({"n_participants": 0}, "0 participants of 10 clients"),
        ({"n_participants": 11}, "11 participants of 10 clients: expected at least 1 and at most all"),
        ({"n_rounds": 0}, "0 rounds: expected 1 or more"),
        ({"copies": ((10, 0),)}, "client 10 as a copy of 0: expected two of 10 clients"),
        ({"copies": ((9, -1),)}, "client 9 as a copy of -1"),
        ({"copies": ((9, 9),)}, "client 9 as a copy of 9"),
        ({"copies": ((9, 8), (8, 0))}, "client 8 as a copy of 0.*a source that is itself no copy"),
        ({"copies": ((9, 0), (9, 1))}, "expected one source for each copy"),
        ({"noise_shares": (0.1,)}, r"noise shares \(0.1,\): expected 10 numbers from 0 to 1"),
        ({"flip_shares": (1.5,) * 10}, "flip shares"),
        (
            {"copies": ((9, 0),), "noise_shares": tuple(k / 10 for k in range(10))},
            "client 9 is a copy of 0, but they have noise shares 0.9 and 0.0",
        ),
        ({"rate": -1.0}, "needs a rate > 0"),
        ({"schedule": "cosine"}, "unknown learning-rate schedule 'cosine'"),
        ({"n_epochs": 2}, "expected one of the two"),
        ({"optimizer": "adm"}, r"unknown optimizer 'adm': did you mean 'adam'\?"),
        ({"momentum": 1.0}, "momentum 1.0.*expected a momentum from 0 to below 1"),
        ({"proximal": -1.0}, "a proximal ≥ 0"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum 0.9 with adam, which has its own"),
        ({"drift": 1.5}, "expected a drift from 0 to 1"),
        ({"training_seed": -1}, "training seed -1: expected 0 or more"),
        ({"availability": (1.0, 2.0)}, "availability.*expected 10 numbers"),
        ({"availability": (1.0, 2.0) + (0.0,) * 8}, "of which 3 or more are positive"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        SimulationSettings(**changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_clients", "x"),
        ("n_rounds", 2.5),
        ("rate", float("inf")),
        ("copies", [[0]]),
        ("hidden", ["8"]),
        ("seed", ""),
    ],
)
def test_a_setting_of_another_kind_in_a_header_is_named(name, value):
    document = {**SimulationSettings().document(), name: value}
    with pytest.raises(UsageError, match=rf"\$\.{name}|{name} inf"):
        settings_from(document)


@pytest.mark.parametrize(
    "given",
    [{"n_clients": 10**9, "copies": ()}, {"n_rounds": 10**9}, {"n_steps": 10**9}, {"seed": -1}, {"dtype": "x"}],
)
def test_a_size_that_nobody_means_is_refused(given):
    with pytest.raises(UsageError):
        SimulationSettings(**given)


positive = st.floats(1e-3, 1e3)


def test_a_constant_rate_stays():
    assert [Schedule(rate=0.3).at(t) for t in range(3)] == [0.3, 0.3, 0.3]


def test_a_decaying_rate_falls_as_one_over_one_plus_decay_times_round():
    assert [Schedule("decay", 0.4, decay=1.0).at(t) for t in range(3)] == [0.4, 0.2, pytest.approx(0.4 / 3)]


def test_the_printed_gamma_and_the_one_of_li_et_al_differ():
    printed = Schedule("proposition-2", convexity=0.5, smoothness=2.0)
    of_li = Schedule("proposition-2-li", convexity=0.5, smoothness=2.0)
    assert (printed.gamma, of_li.gamma) == (2.0, 32.0)
    assert printed.at(0) == pytest.approx(2 / (0.5 * (2 + 1)))  # t = 1 in the first round
    assert of_li.at(4) == pytest.approx(2 / (0.5 * (32 + 5)))


def test_gamma_is_at_least_one():
    assert Schedule("proposition-2", convexity=0.01, smoothness=1.0).gamma == 1.0


@given(positive, positive, st.sampled_from(["proposition-2", "proposition-2-li"]))
def test_the_rate_of_proposition_2_falls_and_at_most_halves_in_any_doubling_of_time(convexity, smoothness, name):
    """As Li et al. require: η^t non-increasing, and η^t ≤ 2 η^{2t}, for γ ≥ 0."""
    schedule = Schedule(name, convexity=convexity, smoothness=smoothness)
    rates = [schedule.at(t) for t in range(20)]
    assert all(a > b > 0 for a, b in pairwise(rates))
    assert all(rates[t - 1] <= 2 * rates[2 * t - 1] for t in range(1, 10))


def test_an_unknown_schedule_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"unknown learning-rate schedule 'constnt': did you mean 'constant'\?"):
        Schedule("constnt")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"rate": 0.0}, "needs a rate > 0"),
        ({"rate": float("nan")}, "needs a rate > 0"),
        ({"name": "decay", "decay": -1.0}, "a decay ≥ 0"),
        ({"name": "proposition-2"}, "needs μ > 0 and L₂ > 0, found μ = 0.0, L₂ = 0.0"),
        ({"name": "proposition-2-li", "convexity": 1.0}, "needs μ > 0 and L₂ > 0"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(schedule, message):
    with pytest.raises(UsageError, match=message):
        Schedule(**schedule)
