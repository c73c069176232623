"""What was measured once is not measured again, and what is not the same is never taken for it."""

import shutil
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import fedworth
from fedworth.errors import ArtefactError
from fedworth.ledger.ledger import Ledger, open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.task import Task


@pytest.fixture
def ledger(tiny_ledger: Ledger, tmp_path: Path) -> Ledger:
    """A copy of the small federation, with nothing measured yet."""
    shutil.copytree(tiny_ledger.folder, tmp_path / "ledger", ignore=shutil.ignore_patterns("utilities"))
    return open_ledger(tmp_path / "ledger")


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


ALL = 31 + 3 + 3
CHECKS = 3  # one kept utility of each round is measured again


def test_a_second_run_measures_only_its_checks_and_gives_equal_bytes(ledger, tiny_task, counts):
    first = measured(ledger, LoopOracle(tiny_task))
    assert sum(counts) == ALL
    counts.clear()
    again = measured(ledger, LoopOracle(tiny_task))
    assert sum(counts) == CHECKS
    assert first.utilities.tobytes() == again.utilities.tobytes()


def test_more_permutations_measure_only_what_is_missing(ledger, tiny_task, counts):
    few = n_asked(counts, ledger, LoopOracle(tiny_task), permutations=3)
    more = n_asked(counts, ledger, LoopOracle(tiny_task), permutations=20)
    assert few + more - CHECKS == n_asked(counts, ledger, LoopOracle(tiny_task), permutations=20, cache=False)
    kept = measured(ledger, LoopOracle(tiny_task), permutations=20)
    fresh = measured(ledger, LoopOracle(tiny_task), permutations=20, cache=False)
    assert kept.utilities.tobytes() == fresh.utilities.tobytes()


def test_another_weighting_measure_test_set_or_sample_count_is_measured_anew(ledger, tiny_task, counts):
    fewer = Task(tiny_task.module, tiny_task.inputs[:-1], tiny_task.labels[:-1])
    measured(ledger, LoopOracle(tiny_task))
    assert n_asked(counts, ledger, LoopOracle(tiny_task), weighting="fixed") == ALL
    assert n_asked(counts, ledger, LoopOracle(tiny_task, "accuracy")) == ALL
    assert n_asked(counts, ledger, LoopOracle(fewer)) == ALL
    assert n_asked(counts, ledger, LoopOracle(tiny_task)) == CHECKS
    n_samples = ledger.entries[0].sample_counts
    changed = msgspec.structs.replace(ledger.entries[0], sample_counts=(n_samples[0] + 1, *n_samples[1:]))
    altered = replace(ledger, entries=(changed, *ledger.entries[1:]))
    measured(ledger, LoopOracle(tiny_task), weighting="samples")
    assert n_asked(counts, altered, LoopOracle(tiny_task), weighting="samples") == 31 + 2


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
    writer = create_ledger(folder, ["0", "1", "2"], aggregation="uniform")
    models = {str(k): {name: t + 1.5 * torch.randn(t.shape) for name, t in start.items()} for k in range(3)}
    writer.record_round(start, {name: Answer(model, 1) for name, model in models.items()})
    writer.release()
    return open_ledger(folder)


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
@pytest.mark.parametrize("change", CHANGES)
def test_kept_utilities_never_answer_for_another_task(net_ledger, tmp_path, change, oracle_type):
    """Neither names of layers nor their source say what a module computes: a kept utility is measured again."""
    ledger = open_ledger(shutil.copytree(net_ledger.folder, tmp_path / "l"))
    generator = torch.Generator().manual_seed(1)
    task = Task(Net(), torch.randn(40, 4, generator=generator), torch.arange(40) % 3)
    other = CHANGES[change](task)
    first = measured(ledger, oracle_type(task))
    found = measured(ledger, oracle_type(other))
    assert found.utilities.tobytes() == measured(ledger, oracle_type(other), cache=False).utilities.tobytes()
    assert measured(ledger, oracle_type(task)).utilities.tobytes() == first.utilities.tobytes()


def kept_files(ledger: Ledger) -> list[Path]:
    return sorted((ledger.folder / "utilities").rglob("*.npz"))


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "renamed"])
def test_a_damaged_file_is_reported_and_never_used(ledger, tiny_task, counts, damage):
    measured(ledger, LoopOracle(tiny_task))
    path, other = kept_files(ledger)[:2]
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        with np.load(path) as file:
            data[data.index(file["utilities"].tobytes())] ^= 1
    content = {"cut": data[:-9], "empty": b"", "renamed": other.read_bytes()}.get(damage, data)
    path.write_bytes(bytes(content))
    with pytest.raises(ArtefactError, match=path.name):
        measured(ledger, LoopOracle(tiny_task))
    path.unlink()
    assert n_asked(counts, ledger, LoopOracle(tiny_task)) == 31 + 2


def test_a_changed_number_with_a_good_archive_around_it_is_found(ledger, tiny_task):
    measured(ledger, LoopOracle(tiny_task))
    path = kept_files(ledger)[0]
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["utilities"][0] += 1e-9
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(ArtefactError, match="remove the file"):
        measured(ledger, LoopOracle(tiny_task))


def test_only_the_owner_can_read_what_is_kept_and_the_ledger_stays_good(ledger, tiny_task):
    measured(ledger, LoopOracle(tiny_task))
    for path in (ledger.folder / "utilities").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert fedworth.verify_ledger(ledger.folder).chain == ledger.chain


def test_a_place_that_cannot_be_written_is_an_error_with_a_way_out(ledger, tiny_task):
    (ledger.folder / "utilities").write_text("in the way")
    with pytest.raises(ArtefactError, match=r"cannot be kept there .* use --no-cache"):
        measured(ledger, LoopOracle(tiny_task))


def test_stale_files_beside_fresh_ones_are_not_believed(net_ledger, tmp_path):
    """Utilities of the old task in two files, then of the new one in another: only the new ones are used."""
    ledger = open_ledger(shutil.copytree(net_ledger.folder, tmp_path / "l"))
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    old, new = (LoopOracle(Task(Net(squash=each), inputs, torch.arange(40) % 3)) for each in (torch.relu, torch.tanh))
    measured(ledger, old, permutations=2)
    measured(ledger, old)
    expected = measured(ledger, new, cache=False).utilities.tobytes()
    for _ in range(2):
        assert measured(ledger, new).utilities.tobytes() == expected
