"""What was measured once is not measured again, and what is not known to be the same is never taken for it."""

import functools
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import fedworth
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.task import Task


@pytest.fixture
def ledger(tiny_ledger: Ledger) -> Ledger:
    """The small federation, with nothing measured yet."""
    return tiny_ledger


@pytest.fixture
def counts(monkeypatch):
    """How many utilities were asked of the plain loop, call by call."""
    asked: list[int] = []
    plain = LoopOracle.utilities

    def counted(self, round_, mixtures):
        asked.append(len(mixtures))
        return plain(self, round_, mixtures)

    monkeypatch.setattr(LoopOracle, "utilities", counted)
    return asked


def measured(ledger, oracle, *, cache=True, **settings):
    """The utility matrix of a ledger."""
    work = fedworth.WorkSettings(cache=cache)
    made = fedworth.ValuationSettings(as_average=True, **settings)
    return fedworth.Federation(ledger, oracle.task, made, work=work, oracle=oracle).utility_matrix()


def n_asked(counts, ledger, oracle, **settings) -> int:
    counts.clear()
    measured(ledger, oracle, **settings)
    return sum(counts)


def test_other_measures_are_kept_with_the_utilities(ledger, tiny_task, counts):
    also = LoopOracle(tiny_task, also=("accuracy",))
    n_asked(counts, ledger, LoopOracle(tiny_task))
    assert n_asked(counts, ledger, also) == ALL  # the others were kept without the accuracy
    assert n_asked(counts, ledger, also) == 0
    federation = fedworth.Federation(ledger, tiny_task, fedworth.ValuationSettings(as_average=True), oracle=also)
    game = federation.recorded.game(1)
    everyone = np.ones((1, len(game.clients)), dtype=bool)
    by_accuracy = fedworth.Federation(ledger, tiny_task, oracle=LoopOracle(tiny_task, "accuracy")).recorded.game(1)
    assert game.columns(everyone)[0, 1] == pytest.approx(by_accuracy.utilities(everyone)[0, 0], abs=1e-12)


ALL = 31 + 3 + 3


def test_a_second_run_measures_nothing_and_gives_equal_bytes(ledger, tiny_task, counts):
    first = measured(ledger, LoopOracle(tiny_task))
    assert sum(counts) == ALL
    counts.clear()
    again = measured(ledger, LoopOracle(tiny_task))
    assert sum(counts) == 0
    assert first.utilities.tobytes() == again.utilities.tobytes()


def test_more_permutations_measure_only_what_is_missing(ledger, tiny_task, counts):
    few = n_asked(counts, ledger, LoopOracle(tiny_task), permutations=3)
    more = n_asked(counts, ledger, LoopOracle(tiny_task), permutations=20)
    assert few + more == n_asked(counts, ledger, LoopOracle(tiny_task), permutations=20, cache=False)
    kept = measured(ledger, LoopOracle(tiny_task), permutations=20)
    fresh = measured(ledger, LoopOracle(tiny_task), permutations=20, cache=False)
    assert kept.utilities.tobytes() == fresh.utilities.tobytes()


def test_another_weighting_measure_test_set_or_sample_count_is_measured_anew(ledger, tiny_task, counts):
    fewer = Task(tiny_task.module, tiny_task.inputs[:-1], tiny_task.labels[:-1])
    measured(ledger, LoopOracle(tiny_task))
    assert n_asked(counts, ledger, LoopOracle(tiny_task), weighting="fixed") == ALL
    assert n_asked(counts, ledger, LoopOracle(tiny_task, "accuracy")) == ALL
    assert n_asked(counts, ledger, LoopOracle(fewer)) == ALL
    assert n_asked(counts, ledger, LoopOracle(tiny_task)) == 0
    n_samples = ledger.entries[0].sample_counts
    changed = msgspec.structs.replace(ledger.entries[0], sample_counts=(n_samples[0] + 1, *n_samples[1:]))
    altered = replace(ledger, entries=(changed, *ledger.entries[1:]))
    measured(ledger, LoopOracle(tiny_task), weighting="samples")
    assert n_asked(counts, altered, LoopOracle(tiny_task), weighting="samples") == 31


class Net(nn.Module):
    """A module whose layers look the same, whatever it computes with them."""

    def __init__(self, squash=torch.relu, scale=1.0, shift=0.0):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.squash, self.scale = squash, scale
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, inputs):
        return self.last(self.squash(self.first(inputs) + self.shift)) * self.scale


class Corrected(Net):
    """The same layers, another source."""

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)))


CHANGES = {
    "a forgotten relu": lambda t: Task(Net(squash=lambda x: x), t.inputs, t.labels),
    "another activation": lambda t: Task(Net(squash=torch.tanh), t.inputs, t.labels),
    "another forward": lambda t: Task(Corrected(), t.inputs, t.labels),
    "a factor": lambda t: Task(Net(scale=1.01), t.inputs, t.labels),
    "a buffer that models do not carry": lambda t: Task(Net(shift=0.1), t.inputs, t.labels),
    "a noise that clients add": lambda t: replace(t, client_noise=0.1),
    "inputs in another order": lambda t: Task(t.module, t.inputs.flip(0), t.labels),
    "other inputs": lambda t: Task(t.module, t.inputs + 0.01, t.labels),
    "other labels": lambda t: Task(t.module, t.inputs, (t.labels + 1) % 3),
    "fewer samples": lambda t: Task(t.module, t.inputs[:-1], t.labels[:-1]),
}


@pytest.fixture(scope="module")
def net_ledger(tmp_path_factory) -> Ledger:
    """One round of three clients."""
    torch.manual_seed(0)
    start = {name: tensor.clone() for name, tensor in Net().state_dict().items()}
    folder = tmp_path_factory.mktemp("net") / "ledger"
    writer = LedgerWriter.create(folder, ["0", "1", "2"], aggregation="uniform")
    models = {str(k): {name: t + 1.5 * torch.randn(t.shape) for name, t in start.items()} for k in range(3)}
    writer.record_round(start, {name: Answer(model, 1) for name, model in models.items()})
    writer.release()
    return Ledger.open(folder)


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
@pytest.mark.parametrize("change", CHANGES)
def test_kept_utilities_never_answer_for_another_task(net_ledger, tmp_path, change, oracle_type):
    ledger = Ledger.open(shutil.copytree(net_ledger.folder, tmp_path / "l"))
    generator = torch.Generator().manual_seed(1)
    task = Task(Net(), torch.randn(40, 4, generator=generator), torch.arange(40) % 3)
    other = CHANGES[change](task)
    first = measured(ledger, oracle_type(task))
    found = measured(ledger, oracle_type(other))
    assert found.utilities.tobytes() == measured(ledger, oracle_type(other), cache=False).utilities.tobytes()
    assert measured(ledger, oracle_type(task)).utilities.tobytes() == first.utilities.tobytes()


SCALE = 1.0


def scaled(outputs, labels, scale=None):
    """A loss of one's own that reads a constant of its module, or is given one."""
    return nn.functional.cross_entropy(outputs * (SCALE if scale is None else scale), labels, reduction="none")


def hooked(scale: float) -> nn.Module:
    module = nn.Linear(4, 3)
    module.register_forward_hook(lambda *call: call[2] * scale)
    return module


def enclosing(scale: float):
    return lambda outputs, labels: scaled(outputs, labels, scale)


OWN_CODE: dict[str, Callable[[float], dict[str, Any]]] = {
    "a constant that a loss reads": lambda _: {"loss": scaled},
    "a constant in a partial": lambda scale: {"loss": functools.partial(scaled, scale=scale)},
    "a constant in a closure": lambda scale: {"loss": enclosing(scale)},
    "a constant in a lambda that a layer holds": lambda scale: {"module": with_activation(lambda x: x * scale)},
    "a hook": lambda scale: {"module": hooked(scale)},
}


def with_activation(function) -> Any:
    module: Any = nn.Linear(4, 3)
    module.forward = lambda rows: function(nn.functional.linear(rows, module.weight, module.bias))
    return module


@pytest.fixture(scope="module")
def linear_ledger(tmp_path_factory) -> Ledger:
    """One round of three linear models."""
    generator = torch.Generator().manual_seed(0)
    models = [{"weight": torch.randn(3, 4, generator=generator), "bias": torch.zeros(3)} for _ in range(4)]
    folder = tmp_path_factory.mktemp("linear") / "ledger"
    writer = LedgerWriter.create(folder, ["0", "1", "2"], aggregation="uniform")
    writer.record_round(models[0], {str(k): Answer(model, 1) for k, model in enumerate(models[1:])})
    writer.release()
    return Ledger.open(folder)


@pytest.mark.parametrize("where", OWN_CODE)
def test_code_of_ones_own_is_measured_again_since_it_can_read_anything(linear_ledger, tmp_path, monkeypatch, where):
    inputs, labels = torch.randn(40, 4, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3
    settings, found = fedworth.ValuationSettings(as_average=True), {}
    for scale in (1.0, 3.0):
        monkeypatch.setattr("tests.oracle.test_store.SCALE", scale)
        task = replace(Task(nn.Linear(4, 3), inputs, labels), **OWN_CODE[where](scale))
        report = fedworth.report_on(linear_ledger, task, settings, methods=["fedsv"])
        report.write(tmp_path / "r")  # the same folder
        fresh = fedworth.Federation(linear_ledger, task, settings, work=fedworth.WorkSettings(cache=False))
        found[scale] = fresh.value("fedsv").values
        assert report.chosen.values.tolist() == found[scale].tolist()
        assert fedworth.verify_report(report, linear_ledger.folder, task)
    assert np.abs(found[1.0] - found[3.0]).max() > 1e-3


def test_client_noise_and_rule_are_part_of_what_a_task_is(tiny_task):
    from fedworth.task.rules import Median, TrimmedMean

    tasks = [tiny_task, replace(tiny_task, client_noise=0.1), replace(tiny_task, client_noise=0.2)]
    tasks += [replace(tiny_task, rule=rule) for rule in (Median(), TrimmedMean(0.1), TrimmedMean(0.2))]
    assert len({task.fingerprint for task in tasks}) == len(tasks)


def test_utilities_that_travel_with_a_ledger_are_not_read(ledger, tiny_task, cache):
    """Whoever sends a ledger may put anything beside it."""
    expected = measured(ledger, LoopOracle(tiny_task), cache=False).utilities.tobytes()
    measured(ledger, LoopOracle(tiny_task))
    for path in kept_files(cache):
        with np.load(path) as file:
            np.savez(path, **{**file, "utilities": file["utilities"] + 0.5})
    for place in ("utilities", ".cache/utilities", "fedworth/utilities"):
        shutil.copytree(cache / "utilities", ledger.folder / place)
    shutil.rmtree(cache)
    before = sorted(ledger.folder.rglob("*"))
    assert measured(Ledger.open(ledger.folder), LoopOracle(tiny_task)).utilities.tobytes() == expected
    assert sorted(ledger.folder.rglob("*")) == before


def kept_files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.npz"))


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "another's", "shape", "nan"])
def test_a_damaged_file_is_measured_anew_and_replaced(ledger, tiny_task, counts, cache, damage):
    expected = measured(ledger, LoopOracle(tiny_task)).utilities.tobytes()
    files = kept_files(cache)
    assert len(files) == 3
    for path, other in zip(files, [*files[1:], files[0]], strict=True):
        data = bytearray(path.read_bytes())
        with np.load(path) as file:
            arrays = dict(file)
        data[data.index(arrays["utilities"].tobytes())] ^= damage == "flipped"
        content = {"cut": data[:-9], "empty": b"", "another's": other.read_bytes()}.get(damage, data)
        path.write_bytes(bytes(content))
        if damage == "shape":
            np.savez(path, **{**arrays, "utilities": arrays["utilities"][1:]})
        if damage == "nan":
            np.savez(path, **{**arrays, "utilities": arrays["utilities"] * np.nan})
    counts.clear()
    assert measured(ledger, LoopOracle(tiny_task)).utilities.tobytes() == expected
    assert sum(counts) > 0
    assert n_asked(counts, ledger, LoopOracle(tiny_task)) == 0


def test_only_the_owner_can_read_what_is_kept_and_the_ledger_is_not_touched(ledger, tiny_task, cache):
    before = sorted(ledger.folder.rglob("*"))
    measured(ledger, LoopOracle(tiny_task))
    for path in (cache / "utilities").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert sorted(ledger.folder.rglob("*")) == before


def test_a_cache_that_cannot_be_written_changes_nothing(ledger, tiny_task, cache):
    expected = measured(ledger, LoopOracle(tiny_task), cache=False).utilities.tobytes()
    cache.write_text("in the way")
    assert measured(ledger, LoopOracle(tiny_task)).utilities.tobytes() == expected


def test_the_users_cache_folder_is_used_by_default(monkeypatch, tmp_path):
    from fedworth.oracle.store import cache_folder

    monkeypatch.delenv("FEDWORTH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedworth" / "utilities"


def test_clients_that_are_left_out_are_in_no_kept_coalition(ledger, tiny_task):
    measured(ledger, LoopOracle(tiny_task))
    kept = measured(ledger, LoopOracle(tiny_task), without=("1",)).utilities.tobytes()
    assert kept == measured(ledger, LoopOracle(tiny_task), without=("1",), cache=False).utilities.tobytes()
