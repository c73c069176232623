import json

import pytest

from fedworth.cli.main import main


def test_measures_of_one_ledger_side_by_side(tiny_ledger, capsys):
    assert main(["compare", str(tiny_ledger.folder), "--methods", "comfedsv, fedsv,cosine"]) == 0
    shown = capsys.readouterr().out
    assert "ComFedSV" in shown
    assert "cosine" in shown
    assert main(["compare", str(tiny_ledger.folder), "--methods", "fedsv,influence", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["measure"] for row in document["measures"]] == ["fedsv", "influence"]
    assert all(row["error"] is not None for row in document["measures"])


@pytest.mark.parametrize("names", ["nonsense", ""])
def test_a_wrong_list_of_measures_is_an_error_in_words(tiny_ledger, names, capsys):
    assert main(["compare", str(tiny_ledger.folder), "--methods", names]) == 2
    assert "comfedsv" in capsys.readouterr().err


def test_measures_are_compared_on_one_ledger_at_a_time(tiny_ledger, capsys):
    folder = str(tiny_ledger.folder)
    assert main(["compare", folder, folder, "--methods", "all"]) == 2
    assert "expected one RUN" in capsys.readouterr().err
