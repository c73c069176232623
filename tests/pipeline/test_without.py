"""A federation without one of its clients is valued as if that client had never answered."""

import json

import numpy as np
import pytest

from fedworth.cli.main import main
from fedworth.errors import UsageError
from fedworth.games.matrix_file import load_utilities, save_utilities
from fedworth.games.observe import observe
from fedworth.games.planning.choose import PlanSettings, choose_plan
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.oracle import LoopOracle
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.simulation.simulate import simulate
from fedworth.valuation.value import value

LEFT_OUT = 2


def copy_without(ledger, folder, client):
    """The rounds of a ledger with every answer but one client's; the client is still expected."""
    writer = create_ledger(folder, ledger.clients, aggregation=ledger.aggregation, settings=ledger.settings)
    for round_ in ledger.rounds():
        counts = dict(zip(round_.entry.answered, round_.entry.sample_counts, strict=True))
        others = {k: model for k, model in round_.client_models.items() if k != client}
        writer.record_round(
            round_.global_model, {ledger.clients[k]: Answer(model, counts[k]) for k, model in others.items()}
        )
    writer.close(ledger.final_model())
    return open_ledger(folder)


@pytest.mark.parametrize("weighting", ["uniform", "samples", "fixed"])
def test_the_others_are_measured_as_if_the_client_had_never_answered(tiny_ledger, tiny_task, tmp_path, weighting):
    without = tiny_ledger.without([tiny_ledger.clients[LEFT_OUT]])
    never = copy_without(tiny_ledger, tmp_path / "never", LEFT_OUT)
    found, expected = (observe(ledger, LoopOracle(tiny_task), weighting=weighting) for ledger in (without, never))
    assert np.array_equal(found.coalitions, expected.coalitions)
    assert np.array_equal(found.utilities, expected.utilities)
    assert np.array_equal(found.participants, expected.participants)
    assert not found.coalitions[:, LEFT_OUT].any()


def test_nobody_calls_a_client_that_was_left_out_unheard(tiny_ledger, tiny_task, tmp_path):
    matrix = observe(tiny_ledger.without(["2"]), LoopOracle(tiny_task))
    save_utilities(matrix, tmp_path / "u.npz")
    made = value(load_utilities(tmp_path / "u.npz"), "fedsv", strict=True)
    assert np.isnan(made.values).tolist() == [False, False, True, False, False]
    assert [w for w in made.warnings if "client '2' was left out, as asked" in w]
    assert not [w for w in made.warnings if "never heard" in w]


def test_permutations_are_of_the_others(tiny_ledger, tiny_task):
    from fedworth.oracle.weighting import participation

    ledger = tiny_ledger.without(["2"])
    matrix = observe(ledger, LoopOracle(tiny_task), choose_plan(participation(ledger), PlanSettings(4)))
    assert matrix.permutations is not None
    assert set(matrix.permutations.flat) == {0, 1, 3, 4}
    assert np.isfinite(np.delete(value(matrix, "comfedsv").values, LEFT_OUT)).all()


def test_the_commands_agree_and_say_so(tmp_path, capsys):
    small = [*("--clients", "4", "--copy", "none", "--participants", "2", "--rounds", "3"), *("--train-limit", "120")]
    ledger = str(tmp_path / "run" / "ledger")

    def told(*command):
        assert main([str(word) for word in command]) == 0
        return json.loads(capsys.readouterr().out)

    run = told("run", *small, "--without", "1", "--out", tmp_path / "run", "--json")
    expected = next(v for v in run["valuations"] if v["method"] == "comfedsv")
    assert expected["values"][1] is None
    assert any("client '1' was left out, as asked" in warning for warning in expected["warnings"])
    assert "client '1' was left out, as asked" in (tmp_path / "run" / "report.md").read_text()
    watched = told("watch", ledger, "--once", "--without", "1", "--out", tmp_path / "w", "--json")
    assert next(v for v in watched["valuations"] if v["method"] == "comfedsv")["values"] == expected["values"]
    told("observe", ledger, "--without", "1", "--out", tmp_path / "u.npz", "--json")
    told("complete", tmp_path / "u.npz", "--ledger", ledger, "--out", tmp_path / "c.npz", "--json")
    found = told("value", tmp_path / "u.npz", "--completion", tmp_path / "c.npz", "--json")
    assert found["values"] == expected["values"]
    assert main(["observe", ledger, "--without", "clinic", "--out", str(tmp_path / "v.npz")]) == 2
    assert "unknown client 'clinic'" in capsys.readouterr().err


def test_a_client_that_is_yet_to_join_may_be_left_out_while_a_federation_trains(tiny_ledger, tiny_settings, tmp_path):
    growing = create_ledger(tmp_path / "l", ("a",), aggregation="uniform")
    growing.record_round(tiny_ledger.final_model(), {"a": Answer(tiny_ledger.final_model(), 3)})
    assert open_ledger(tmp_path / "l").without(["late"]).left_out == ("late",)
    with pytest.raises(UsageError, match="unknown client 'late'"):
        simulate(tiny_settings, tmp_path / "closed").without(["late"])


def test_nobody_left_is_refused_before_anything_is_measured(tiny_ledger, tiny_task):
    with pytest.raises(UsageError, match="every client that took part in a round is left out"):
        observe(tiny_ledger.without(tiny_ledger.clients), LoopOracle(tiny_task))


def test_what_is_said_of_every_method_is_said_once(tiny_ledger, tiny_task, tmp_path):
    settings = ValuingSettings(without=(tiny_ledger.clients[1],), completion="factors")
    said = [w for w in report_on(tiny_ledger, tiny_task, settings, tmp_path / "r").warnings() if "was left out" in w]
    assert len(said) == 1
    assert said[0].startswith("comfedsv, fedsv, ")
