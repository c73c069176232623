"""Models of other programs: torch's and NumPy's files, and what is refused of them."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedworth.errors import DataError
from fedworth.recording.importing import _read, import_folder

MODEL = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.zeros(2, dtype=torch.float64)}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def round_folder(tmp_path):
    place = tmp_path / "models" / "000"
    place.mkdir(parents=True)
    save_file(MODEL, place / "global.safetensors")
    torch.save(MODEL, place / "a.pt")
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in MODEL.items()}
    np.savez(place / "b.npz", **arrays)
    return place


def test_a_round_may_hold_files_of_several_kinds(round_folder, tmp_path):
    ledger = import_folder(round_folder.parent, tmp_path / "l", aggregation="uniform")
    assert ledger.clients == ("a", "b")
    assert all(same(model, MODEL) for model in ledger.open_round(0).client_models.values())


@pytest.mark.parametrize("wrapped", ["state_dict", "model_state_dict"])
def test_a_checkpoint_is_read_for_its_state_dict(tmp_path, wrapped):
    torch.save({"epoch": 3, wrapped: MODEL, "optimizer": {"lr": 0.1}}, tmp_path / "a.pth")
    assert same(_read(tmp_path / "a.pth"), MODEL)


def test_arrays_without_names_are_numbered(tmp_path):
    np.savez(tmp_path / "a.npz", np.ones(2), np.zeros(3))
    assert list(_read(tmp_path / "a.npz")) == ["0", "1"]


def test_nothing_but_numbers_is_read(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    np.savez(tmp_path / "texts.npz", a=np.array(["x"]))
    (tmp_path / "garbage.pt").write_bytes(b"garbage")
    with pytest.raises(DataError, match=r"module.pt: not readable as tensors alone .* torch.save\(module.state_dict"):
        _read(tmp_path / "module.pt")
    with pytest.raises(DataError, match=r"list.pt: holds a list, expected a state dict"):
        _read(tmp_path / "list.pt")
    for name in ("objects.npz", "texts.npz"):
        with pytest.raises(DataError, match="not readable as arrays of numbers"):
            _read(tmp_path / name)
    with pytest.raises(DataError, match=r"garbage.pt: not readable as tensors alone"):
        _read(tmp_path / "garbage.pt")


@pytest.mark.parametrize("name", ["c.ubj", "c.json"])
def test_trees_are_refused_with_the_reason(round_folder, tmp_path, name):
    (round_folder / name).write_text("{}")
    with pytest.raises(DataError, match="they have no mean"):
        import_folder(round_folder.parent, tmp_path / "l", aggregation="uniform")


def test_a_file_that_is_no_model_is_not_passed_over(round_folder, tmp_path):
    (round_folder / ".DS_Store").write_text("")
    (round_folder / "c.h5").write_text("")
    with pytest.raises(DataError, match=r"c.h5: expected a model of .safetensors, .pt, .pth, .npz; convert it"):
        import_folder(round_folder.parent, tmp_path / "l", aggregation="uniform")


def test_two_files_of_one_client_are_refused(round_folder, tmp_path):
    torch.save(MODEL, round_folder / "b.pt")
    with pytest.raises(DataError, match=r"b.npz and b.pt are both there"):
        import_folder(round_folder.parent, tmp_path / "l", aggregation="uniform")
