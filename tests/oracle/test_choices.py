"""Devices, engines and threads chosen by name: the CPU's bytes are as ever, and what cannot be had is refused first."""

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from fedworth.oracle.cache import utility_cache
from torch import nn

from fedworth.cli.main import main
from fedworth.errors import UsageError
from fedworth.ledger.ledger import Round
from fedworth.oracle.choices import device_named
from fedworth.oracle.fast import n_processors
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import Mixtures
from fedworth.pipeline.run import RunSettings
from fedworth.task.task import Task


def test_the_cpu_named_gives_the_bytes_of_the_cpu_not_named(tiny_ledger, tmp_path):
    for name, options in {"named": ["--device", "cpu"], "not": []}.items():
        command = ["observe", str(tiny_ledger.folder), "--no-cache", "--out", str(tmp_path / f"{name}.npz")]
        assert main([*command, *options]) == 0
    assert (tmp_path / "named.npz").read_bytes() == (tmp_path / "not.npz").read_bytes()


def test_a_run_on_the_cpu_has_the_settings_of_one_that_names_no_device():
    assert "device" not in RunSettings(device="cpu").document()
    assert RunSettings(device="cuda").document()["device"] == "cuda"


@pytest.mark.parametrize("command", [["observe", "nowhere"], ["run"]])
def test_a_device_that_torch_does_not_have_is_refused_before_anything_is_opened(command, tmp_path, capsys):
    assert main([*command, "--device", "cuda:99", "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert "--device cuda:99: torch cannot compute there" in shown
    assert "it sees cpu" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["meta", "gpu", ""])
def test_what_is_no_device_to_compute_on_is_refused(name):
    with pytest.raises(UsageError, match=f"--device {name}: torch cannot compute there"):
        device_named(name)
    assert device_named("cpu") == torch.device("cpu")


def test_utilities_of_another_device_are_kept_apart_from_the_cpus(tiny_ledger, monkeypatch):
    monkeypatch.setattr("fedworth.oracle.cache.architecture", lambda _: "the same")

    def cached_on(device):
        task = SimpleNamespace(device=torch.device(device), fingerprint="the same", blocks=None, n_blocks=1)
        return utility_cache(tiny_ledger, cast(Any, SimpleNamespace(task=task, measure="loss"))).identity

    assert cached_on("cpu") == cached_on("cpu") != cached_on("meta")


class Reached(Exception):
    """The logits were made: all tensors were on one device."""


def test_the_plain_loop_takes_models_to_where_the_task_is(monkeypatch):
    """On torch's device of shapes without numbers, whose tensors cannot be mixed with the CPU's."""

    def stop(_task: Task, outputs: torch.Tensor, _labels: torch.Tensor) -> None:
        raise Reached(outputs.device.type)

    monkeypatch.setattr("fedworth.oracle.oracle.refuse_misfit", stop)
    monkeypatch.setattr(Task, "__post_init__", lambda _: None)  # looks at numbers
    task = Task(nn.Linear(2, 2), torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)).to("meta")
    model = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    with pytest.raises(Reached, match="meta"):
        LoopOracle(task).utilities(
            Round(cast(Any, None), model, {0: model}, {}),
            Mixtures(np.ones((1, 1), dtype=bool), np.ones(1), from_global=False),
        ).sum(axis=1)


@pytest.mark.parametrize(("options", "message"), [(["--threads", "2"], "--threads 2"), (["--device", "cuda"], "cuda")])
def test_what_rays_workers_would_not_heed_is_refused(options, message, tmp_path, capsys):
    assert main(["observe", "nowhere", "--engine", "ray", *options, "--out", str(tmp_path / "u.npz")]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "is for --engine local" in shown


def test_the_routes_taken_are_in_the_json_of_observe(tiny_ledger, tmp_path, capsys):
    found = []
    for n, options in enumerate([[], [], ["--oracle", "loop", "--no-cache"]]):
        command = ["observe", str(tiny_ledger.folder), "--json", "--out", str(tmp_path / f"{n}.npz")]
        assert main([*command, *options]) == 0
        found.append(json.loads(capsys.readouterr().out)["routes"])
    assert found[0].startswith("mixed outputs of the linear layer")
    assert found[1:] == [None, None]  # all known from before; and the loop has no routes


def test_as_many_processors_count_as_this_process_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3}, raising=False)
    assert n_processors() == 1
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert n_processors() == 7
