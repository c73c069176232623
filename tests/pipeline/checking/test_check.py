import json

import numpy as np
import pytest

from fedworth.cli.main import main
from fedworth.errors import TooManyError, UsageError
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.weighting import participation
from fedworth.pipeline.checking import CheckVerdict, check_values
from fedworth.pipeline.checking.altered import in_reverse, with_clone, with_fewer_heard, with_idle
from fedworth.pipeline.checking.check import TESTS, Check
from fedworth.pipeline.checking.selftests import SelfTest
from fedworth.pipeline.stages import ValuingSettings


def test_a_clone_answers_where_its_original_does(tiny_ledger, tmp_path):
    altered, name = with_clone(tiny_ledger, "1", tmp_path / "l")
    present = participation(altered)
    assert altered.clients == (*tiny_ledger.clients, name)
    assert present[:, -1].tolist() == present[:, 1].tolist()
    for t in np.flatnonzero(present[:, 1]).tolist():
        models = altered.open_round(t).client_models
        assert all(models[5][key].equal(tensor) for key, tensor in models[1].items())


def test_an_idle_client_answers_every_round_with_the_global_model(tiny_ledger, tmp_path):
    altered, _ = with_idle(tiny_ledger, tmp_path / "l")
    assert participation(altered)[:, -1].all()
    round_ = altered.open_round(1)
    assert all(round_.client_models[5][key].equal(tensor) for key, tensor in round_.global_model.items())


def test_the_opposite_order_has_the_same_answers(tiny_ledger, tmp_path):
    altered = in_reverse(tiny_ledger, tmp_path / "l")
    assert altered.clients == tiny_ledger.clients[::-1]
    assert participation(altered).tolist() == participation(tiny_ledger)[:, ::-1].tolist()


def test_answers_that_are_not_heard_are_gone(tiny_ledger, tmp_path):
    altered = with_fewer_heard(tiny_ledger, {0: ["0", "4"]}, tmp_path / "l")
    assert participation(altered)[0].tolist() == [False, True, True, True, False]
    assert participation(altered)[1:].tolist() == participation(tiny_ledger)[1:].tolist()


def test_a_name_that_is_taken_gets_a_star(tiny_ledger, tmp_path):
    first, _ = with_idle(tiny_ledger, tmp_path / "one")
    assert with_idle(first, tmp_path / "two")[1] == "an idle one*"


def test_what_must_hold_of_sound_values_holds(tiny_ledger, tiny_task):
    before = {path.name for path in tiny_ledger.folder.iterdir()}
    check = check_values(tiny_ledger, tiny_task, ValuingSettings())
    verdicts = {test.name: test.verdict for test in check.tests}
    assert verdicts["copy"] == verdicts["idle"] == verdicts["order"] == CheckVerdict.HOLDS
    assert {"held out", "heard round"} <= set(verdicts)
    assert not check.sentence.startswith("Do not use")
    assert check.trust is not None
    assert {path.name for path in tiny_ledger.folder.iterdir()} - before <= {
        "utilities",
        "traces",
    }  # what is kept beside a ledger anyway


def test_without_a_round_that_hears_everyone_there_is_none_to_leave_out(tiny_ledger, tiny_task, tmp_path):
    altered = with_fewer_heard(tiny_ledger, {0: ["3"]}, tmp_path / "l")
    check = check_values(altered, tiny_task, ValuingSettings(as_average=True))
    verdicts = {test.name: test.verdict for test in check.tests}
    assert CheckVerdict.FAILS not in verdicts.values()


def test_a_failed_test_forbids_the_values_and_a_doubtful_one_does_not():
    failed = SelfTest("order", CheckVerdict.FAILS, "…")
    doubtful = SelfTest("held out", CheckVerdict.WARNS, "…")
    assert Check("t", (failed, doubtful), None).sentence.startswith("Do not use these values: order")
    assert Check("t", (doubtful,), None).sentence.endswith("see held out.")


def test_values_that_depend_on_the_order_of_clients_are_found_out(tiny_ledger, tiny_task, monkeypatch):
    """A valuer that favours whoever comes first."""
    from fedworth.pipeline.checking import check as module
    from fedworth.pipeline.report_on import report_on

    def unfair(*args, **kwargs):
        report = report_on(*args, **kwargs)
        report.valuations[0].values[0] += 1.0
        return report

    monkeypatch.setattr(module, "report_on", unfair)
    verdicts = {test.name: test.verdict for test in check_values(tiny_ledger, tiny_task, ValuingSettings()).tests}
    assert verdicts["order"] is CheckVerdict.FAILS


def test_more_clients_than_can_be_enumerated_are_refused(tiny_task, tmp_path):
    names = [str(k) for k in range(12)]
    model = {key: tensor.clone() for key, tensor in tiny_task.module.state_dict().items()}
    writer = create_ledger(tmp_path / "l", names, aggregation="uniform")
    writer.record_round(model, {name: Answer(model, 1) for name in names})
    writer.close(model)
    with pytest.raises(TooManyError, match="12 clients: values of more than 11 rest on draws"):
        check_values(open_ledger(tmp_path / "l"), tiny_task, ValuingSettings())


def test_a_client_cannot_be_left_out_of_a_check(tiny_ledger, tiny_task):
    with pytest.raises(UsageError, match="whole federation"):
        check_values(tiny_ledger, tiny_task, ValuingSettings(without=("1",)))


def test_the_command_prints_a_page_or_one_json_document(tiny_ledger, capsys):
    assert main(["check", str(tiny_ledger.folder)]) == 0
    page = capsys.readouterr().out
    assert "copy: holds" in page
    assert "order: holds" in page
    assert main(["check", str(tiny_ledger.folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["tests"]) == len(TESTS)
