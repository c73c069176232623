"""Receipts: what a client sent, in hashes that are the same at the client and at the server."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedworth
from fedworth.errors import ArtefactError
from fedworth.ledger.receipts import Receipt, read_receipts, receipts_of
from fedworth.recording.receipts import receipt
from fedworth.recording.recorder import record_into
from tests.support.ledgers import model

SENT = model(3)
FLOATS = {name: tensor for name, tensor in SENT.items() if tensor.dtype != torch.bfloat16}  # numpy has no bfloat16


class FlowersArray:
    """As in Flower's ArrayRecord."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def numpy(self) -> np.ndarray:
        return self.tensor.numpy()


FORMS: dict[str, Callable[[], Mapping[str, Any]]] = {
    "tensors": lambda: FLOATS,
    "arrays": lambda: {name: tensor.numpy() for name, tensor in FLOATS.items()},
    "in another order": lambda: dict(sorted(FLOATS.items(), reverse=True)),
    "Flower's arrays": lambda: {name: FlowersArray(tensor) for name, tensor in FLOATS.items()},
    "views": lambda: {name: torch.stack([t, t], dim=-1)[..., 0] for name, t in FLOATS.items()},
    "Fortran order": lambda: {name: tensor.numpy().copy(order="F") for name, tensor in FLOATS.items()},
}


def kept_of(*args, **kwargs) -> Receipt:
    """The receipt, which there must be."""
    made = receipt(*args, **kwargs)
    assert made is not None
    return made


def recorded(folder, sent, start=None):
    """The ledger of one client and one round, numbered 7."""
    recorder = record_into(folder, aggregation="samples")
    recorder.start_round(sent if start is None else start, asked=["a"], number=7)
    recorder.client_model("a", sent, n_samples=12)
    recorder.end_round()
    return recorder


@pytest.mark.parametrize("form", FORMS)
def test_client_and_server_have_the_same_hash_in_every_form(form, tmp_path):
    sent = FORMS[form]()
    kept = kept_of(sent, round_number=7, n_samples=12, file=tmp_path / "r.jsonl")
    recorder = recorded(tmp_path / "l", FLOATS)
    assert recorder.receipts() == {"a": kept}
    assert receipts_of(fedworth.Ledger.open(tmp_path / "l"), "a") == (kept,)
    assert read_receipts(tmp_path / "r.jsonl") == [kept]


@pytest.mark.parametrize("places", [None, [3, 1]])
@pytest.mark.parametrize("form", [torch.Tensor.clone, torch.Tensor.numpy])
def test_embeddings_have_the_same_hash_at_client_and_server(tmp_path, form, places):
    head, sent = nn.Linear(2, 2), torch.randn(4, 2)[:: 1 if places is None else 2]
    vertical = fedworth.Vertical(head, torch.arange(4) % 2, {"a": 2})
    recorder = record_into(tmp_path / "l", vertical=vertical)
    recorder.start_round(head.state_dict(), asked=["a"])
    recorder.client_embedding("a", sent, places)
    recorder.end_round()
    given = form(sent) if places is None else {"embedding": form(sent), "samples": np.array(places)}
    kept = kept_of(given, round_number=0, n_samples=len(sent), file=tmp_path / "r.jsonl")
    assert recorder.receipts() == {"a": kept}


def test_a_list_of_arrays_is_recorded_and_has_the_hash_of_its_names(tmp_path):
    arrays = [tensor.numpy() for tensor in FLOATS.values()]
    by_place = kept_of(arrays, round_number=7, n_samples=12, file=tmp_path / "r.jsonl")
    by_name = kept_of(arrays, round_number=7, n_samples=12, file=tmp_path / "r.jsonl", names=FLOATS)
    recorder = recorded(tmp_path / "l", arrays)
    (as_list,) = recorder.receipts().values()
    recorder.close(arrays)
    ledger = fedworth.Ledger.verify(tmp_path / "l")
    assert (ledger.n_rounds, ledger.missing, ledger.is_closed) == (1, (), True)
    (as_dict,) = recorded(tmp_path / "d", FLOATS).receipts().values()
    assert (by_place.sha256, by_place.is_named) == (as_list.sha256, False)
    assert by_name == as_dict
    assert by_place.unnamed == as_dict.unnamed != by_place.sha256
    assert len(read_receipts(tmp_path / "r.jsonl")) == 2


def test_a_difference_has_the_hash_of_the_model_that_the_server_makes_of_it(tmp_path):
    start = {name: tensor.numpy() for name, tensor in model(1).items() if name in ("layer.weight", "scale")}
    difference = {name: 0.1 * array for name, array in start.items()}
    kept = receipt(difference, round_number=7, n_samples=12, file=tmp_path / "r", difference_from=start)
    whole = {name: start[name] + difference[name] for name in start}
    assert recorded(tmp_path / "l", whole, start).receipts() == {"a": kept}


def _changed(name, change):
    return {**SENT, name: change(SENT[name])}


@pytest.mark.parametrize(
    "other",
    [
        _changed("layer.weight", lambda t: torch.nextafter(t, t + 1)),
        _changed("layer.weight", lambda t: t.reshape(4, 3)),
        _changed("layer.weight", lambda t: t.double()),
        {**SENT, "scale": SENT["scale"].flip(0)},
        {name + "x": tensor for name, tensor in SENT.items()},
        {name: tensor for name, tensor in SENT.items() if name != "empty"},
    ],
    ids=["a bit", "a shape", "a dtype", "an order", "names", "a tensor fewer"],
)
def test_another_model_has_another_hash(other, tmp_path):
    first, second = (kept_of(m, round_number=1, n_samples=1, file=tmp_path / "r") for m in (SENT, other))
    assert first.sha256 != second.sha256


def test_only_its_owner_can_read_a_file_of_receipts_and_no_number_of_a_model_is_in_it(tmp_path):
    receipt(SENT, round_number=0, n_samples=12, file=tmp_path / "mine" / "r.jsonl")
    assert os.stat(tmp_path / "mine" / "r.jsonl").st_mode & 0o777 == 0o600
    (line,) = (tmp_path / "mine" / "r.jsonl").read_text().splitlines()
    assert set(json.loads(line)) == {"round", "n_samples", "sha256", "unnamed", "is_named"}


@pytest.mark.parametrize("sent", [None, {"a": "text"}, [object()], {"a": np.array(["x"])}])
def test_a_receipt_never_raises_into_the_training(sent, tmp_path, caplog):
    assert receipt(sent, round_number=0, n_samples=1, file=tmp_path / "r") is None
    (tmp_path / "file").write_text("")
    assert receipt(SENT, round_number=0, n_samples=1, file=tmp_path / "file" / "r") is None
    assert caplog.text.count("training continues") == 2


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "r").write_text('\n{"round": 1}\n')
    with pytest.raises(ArtefactError, match=r"line 2: not a receipt.*expected what fedworth.receipt writes"):
        read_receipts(tmp_path / "r")
    with pytest.raises(ArtefactError, match="cannot be read"):
        read_receipts(tmp_path)
