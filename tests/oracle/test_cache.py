"""What was measured once is not measured again, and what is not the same is never taken for it."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.errors import ArtefactError
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.matrix_file import save_utilities
from fedworth.games.observe import observe_and_count
from fedworth.games.planning.plan import Plan, plan_exact, plan_prefixes
from fedworth.ledger.ledger import Ledger, open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.cache import architecture, utility_cache
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from fedworth.task.task import Task

CHILD = """
import os, signal, sys
from pathlib import Path
from fedworth.simulation.simulate import task_of
from fedworth.ledger.ledger import open_ledger
from fedworth.games import cells as measuring
from fedworth.oracle.cache import utility_cache
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.games.observe import observe
from fedworth.oracle.weighting import participation
from tests.oracle.test_cache import prefix_plan
left, plain = int(sys.argv[2]), os.fsync
def fsync(descriptor):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(descriptor)
os.fsync = fsync
measuring.BATCH_NUMBERS = 60
ledger = open_ledger(Path(sys.argv[1]))
oracle = FastOracle(task_of(ledger), n_threads=1)
observe(ledger, oracle, prefix_plan(ledger, 8), cache=utility_cache(ledger, oracle))
"""


def prefix_plan(ledger: Ledger, n_permutations: int) -> Plan:
    return plan_prefixes(
        participation(ledger), n_permutations=n_permutations, sampler="permutations", rng=np.random.default_rng(0)
    )


@pytest.fixture
def ledger(tiny_ledger: Ledger, tmp_path: Path) -> Ledger:
    """A copy of the small federation, with nothing measured yet."""
    shutil.copytree(tiny_ledger.folder, tmp_path / "ledger", ignore=shutil.ignore_patterns("utilities"))
    return open_ledger(tmp_path / "ledger")


def measured(ledger, oracle, plan, **options) -> tuple[int, UtilityMatrix]:
    """How many utilities had to be measured, and what came of it."""
    found = observe_and_count(ledger, oracle, plan, cache=utility_cache(ledger, oracle), **options)
    return found.n_evaluations, found.matrix


def saved(matrix: UtilityMatrix, path: Path) -> bytes:
    save_utilities(matrix, path)
    return path.read_bytes()


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
def test_a_second_run_measures_nothing_and_gives_equal_bytes(ledger, tiny_task, tmp_path, oracle_type):
    plan, oracle = prefix_plan(ledger, 4), oracle_type(tiny_task)
    n_first, first = measured(ledger, oracle, plan)
    n_again, again = measured(ledger, oracle_type(tiny_task), plan)
    assert (n_first, n_again) == (plan.n_evaluations, 0)
    assert saved(first, tmp_path / "a.npz") == saved(again, tmp_path / "b.npz")


def test_a_known_round_is_opened_once_to_check_a_cell_and_not_again_by_whoever_watches(ledger, tiny_task, monkeypatch):
    plan, oracle, opened = plan_exact(participation(ledger)), LoopOracle(tiny_task), []
    measured(ledger, oracle, plan)
    open_round = Ledger.open_round

    def counted(self, round_index, **options):
        opened.append(round_index)
        return open_round(self, round_index, **options)

    monkeypatch.setattr(Ledger, "open_round", counted)
    assert measured(ledger, oracle, plan)[0] == 0
    assert opened == [0, 1, 2]
    assert measured(ledger, oracle, plan, n_checked=3)[0] == 0
    assert opened == [0, 1, 2]


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
def test_a_longer_plan_measures_only_what_is_missing(ledger, tiny_task, tmp_path, oracle_type):
    short, long, oracle = prefix_plan(ledger, 3), prefix_plan(ledger, 20), oracle_type(tiny_task)
    assert short.permutations is not None
    assert long.permutations is not None
    assert np.array_equal(long.permutations[:3], short.permutations)
    measured(ledger, oracle, short)
    n_new, grown = measured(ledger, oracle, long)
    assert n_new == long.n_evaluations - short.n_evaluations > 0
    fresh = observe_and_count(ledger, oracle, long).matrix
    assert saved(grown, tmp_path / "grown.npz") == saved(fresh, tmp_path / "fresh.npz")


def test_the_truth_knows_what_was_seen_and_the_other_way_round(ledger, tiny_task):
    rows, oracle = participation(ledger), LoopOracle(tiny_task)
    seen, truth = plan_exact(rows), plan_exact(rows, with_truth=True)
    measured(ledger, oracle, seen)
    assert measured(ledger, oracle, truth)[0] == truth.n_evaluations - seen.n_evaluations
    assert measured(ledger, oracle, seen)[0] == 0


def test_killed_in_the_middle_of_a_round_it_goes_on_to_equal_bytes(ledger, tiny_task, tmp_path, monkeypatch):
    """Batches of at most 12 coalitions; the first takes four flushes, the fifth is the second's."""
    monkeypatch.setattr("fedworth.games.cells.BATCH_NUMBERS", 60)
    plan = prefix_plan(ledger, 8)
    whole = observe_and_count(ledger, FastOracle(tiny_task), plan).matrix
    command = [sys.executable, "-c", CHILD, str(ledger.folder), "5"]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    n_left, resumed = measured(ledger, FastOracle(tiny_task), plan)
    n_kept, n_first = plan.n_evaluations - n_left, len(plan.cells[0]) - 1
    assert 0 < n_kept < n_first
    assert saved(resumed, tmp_path / "resumed.npz") == saved(whole, tmp_path / "whole.npz")


def test_another_weighting_measure_oracle_or_test_set_is_measured_anew(ledger, tiny_task):
    plan, oracle = plan_exact(participation(ledger)), LoopOracle(tiny_task)
    fewer = Task(tiny_task.module, tiny_task.inputs[:-1], tiny_task.labels[:-1])
    measured(ledger, oracle, plan)
    assert measured(ledger, oracle, plan, weighting="fixed")[0] == plan.n_evaluations
    for other in (LoopOracle(tiny_task, "accuracy"), FastOracle(tiny_task), LoopOracle(fewer)):
        assert measured(ledger, other, plan)[0] == plan.n_evaluations
    assert measured(ledger, oracle, plan)[0] == 0


def test_a_change_of_sample_counts_alone_is_noticed(ledger, tiny_task):
    """Weights are in the key as they are, so a cell measured with others is not used."""
    plan, oracle = plan_exact(participation(ledger)), LoopOracle(tiny_task)
    n_samples = ledger.entries[0].sample_counts
    more = replace(ledger.entries[0], sample_counts=(n_samples[0] + 1, *n_samples[1:]))
    altered = replace(ledger, entries=(more, *ledger.entries[1:]))
    measured(ledger, oracle, plan, weighting="samples")
    assert measured(altered, oracle, plan, weighting="samples")[0] == 2 ** len(more.participants) - 1


class Net(nn.Module):
    """A module whose layers and source look the same, whatever it computes with them."""

    def __init__(self, squash=torch.relu, scale=1.0, shift=0.0, limit=np.inf):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.squash, self.scale, self.limit = squash, scale, limit
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, inputs):
        logits = self.last(self.squash(self.first(inputs) + self.shift)) * self.scale
        return logits if self.first.weight.norm() < self.limit else logits / 2


class Corrected(Net):
    """The same layers, another source."""

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)))


TASKS = {
    "a forgotten relu": lambda t: Task(Net(squash=lambda x: x), t.inputs, t.labels),
    "another activation": lambda t: Task(Net(squash=torch.tanh), t.inputs, t.labels),
    "another forward": lambda t: Task(Corrected(), t.inputs, t.labels),
    "a factor": lambda t: Task(Net(scale=1.01), t.inputs, t.labels),
    "a buffer that models do not carry": lambda t: Task(Net(shift=0.1), t.inputs, t.labels),
    "clients' models only": lambda t: Task(Net(limit=4.0), t.inputs, t.labels),
    "inputs in another order": lambda t: Task(t.module, t.inputs.flip(0), t.labels),
    "other inputs": lambda t: Task(t.module, t.inputs + 0.01, t.labels),
    "other labels": lambda t: Task(t.module, t.inputs, (t.labels + 1) % 3),
    "fewer samples": lambda t: Task(t.module, t.inputs[:-1], t.labels[:-1]),
}


@pytest.fixture(scope="module")
def net_ledger(tmp_path_factory) -> Ledger:
    """A round of clients whose first layers are larger than the global model's."""
    torch.manual_seed(0)
    start = {name: tensor.clone() for name, tensor in Net().state_dict().items()}
    assert start["first.weight"].norm() < 2
    folder = tmp_path_factory.mktemp("net") / "ledger"
    writer = create_ledger(folder, ["0", "1", "2"], aggregation="uniform")
    models = {str(k): {name: t + 1.5 * torch.randn(t.shape) for name, t in start.items()} for k in range(3)}
    writer.record_round(start, {name: Answer(model, 1) for name, model in models.items()})
    return open_ledger(folder)


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
@pytest.mark.parametrize("change", TASKS)
def test_the_cache_never_answers_for_another_task(net_ledger, tmp_path, change, oracle_type):
    generator = torch.Generator().manual_seed(1)
    task = Task(Net(), torch.randn(40, 4, generator=generator), torch.arange(40) % 3)
    other, plan = TASKS[change](task), plan_exact(participation(net_ledger))
    caches = [replace(utility_cache(net_ledger, oracle_type(each)), folder=tmp_path) for each in (task, other)]
    first = observe_and_count(net_ledger, oracle_type(task), plan, cache=caches[0])
    found = observe_and_count(net_ledger, oracle_type(other), plan, cache=caches[1])
    fresh = observe_and_count(net_ledger, oracle_type(other), plan)
    assert found.matrix.utilities.tobytes() == fresh.matrix.utilities.tobytes()
    assert found.n_evaluations == plan.n_evaluations
    again = [observe_and_count(net_ledger, c.oracle, plan, cache=c) for c in caches]
    assert again[0].matrix.utilities.tobytes() == first.matrix.utilities.tobytes()
    if change != "clients' models only":  # both are kept, unless they have one name and one witness
        assert [each.n_evaluations for each in again] == [0, 0]


@pytest.mark.parametrize("change", ["a forgotten relu", "a factor", "clients' models only"])
def test_not_even_if_all_that_names_the_module_is_the_same(net_ledger, tmp_path, change):
    """Two tasks under one identity: the witness tells them apart, or the cell that is measured again."""
    task = Task(Net(), torch.randn(40, 4, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3)
    other, plan = TASKS[change](task), plan_exact(participation(net_ledger))
    cache = replace(utility_cache(net_ledger, LoopOracle(task)), folder=tmp_path)
    observe_and_count(net_ledger, LoopOracle(task), plan, cache=cache)
    of_other = replace(cache, oracle=LoopOracle(other))
    found = observe_and_count(net_ledger, LoopOracle(other), plan, cache=of_other)
    fresh = observe_and_count(net_ledger, LoopOracle(other), plan)
    assert found.matrix.utilities.tobytes() == fresh.matrix.utilities.tobytes()


def test_the_architecture_is_what_a_module_computes_not_the_weights_it_holds():
    inputs, labels = torch.linspace(-1, 1, 20).reshape(5, 4), torch.tensor([0, 1, 2, 0, 1])
    same = {architecture(Task(Net(), inputs, labels)) for _ in range(2)}
    assert len(same) == 1
    for other in (Net(squash=lambda x: x), Net(shift=0.1), Corrected()):
        assert architecture(Task(other, inputs, labels)) not in same


def kept_files(ledger: Ledger) -> list[Path]:
    return sorted((ledger.folder / "utilities").rglob("*.npz"))


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "renamed"])
def test_a_damaged_file_is_reported_and_never_used(ledger, tiny_task, damage):
    plan, oracle = plan_exact(participation(ledger)), LoopOracle(tiny_task)
    measured(ledger, oracle, plan)
    path, other = kept_files(ledger)[:2]
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        with np.load(path) as file:
            data[data.index(file["utilities"].tobytes())] ^= 1
    content = {"cut": data[:-9], "empty": b"", "renamed": other.read_bytes()}.get(damage, data)
    path.write_bytes(bytes(content))
    with pytest.raises(ArtefactError, match=path.name):
        measured(ledger, oracle, plan)
    path.unlink()
    assert measured(ledger, oracle, plan)[0] == 2**5 - 1


def test_a_changed_number_with_a_good_archive_around_it_is_found(ledger, tiny_task):
    plan, oracle = plan_exact(participation(ledger)), LoopOracle(tiny_task)
    measured(ledger, oracle, plan)
    path = kept_files(ledger)[0]
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["utilities"][0] += 1e-9
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(ArtefactError, match="damaged; remove the file, and they are measured again"):
        measured(ledger, oracle, plan)


def test_only_the_owner_can_read_what_is_kept(ledger, tiny_task):
    measured(ledger, LoopOracle(tiny_task), plan_exact(participation(ledger)))
    for path in (ledger.folder / "utilities").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_a_place_that_cannot_be_written_is_an_error_with_a_way_out(ledger, tiny_task):
    (ledger.folder / "utilities").write_text("in the way")
    with pytest.raises(ArtefactError, match=r"cannot be kept there .* use --no-cache"):
        measured(ledger, LoopOracle(tiny_task), plan_exact(participation(ledger)))


def test_a_ledger_stays_good_with_utilities_beside_it(ledger, tiny_task):
    measured(ledger, LoopOracle(tiny_task), plan_exact(participation(ledger)))
    assert open_ledger(ledger.folder).n_rounds == ledger.n_rounds
    assert os.listdir(ledger.folder / "utilities")


def settings_of(squash=None, **given):
    inputs, labels = torch.linspace(-1, 1, 20).reshape(5, 4), torch.tensor([0, 1, 2, 0, 1])
    return architecture(Task(Net(squash or torch.relu, **given), inputs, labels))


def scaled_by(factor):
    return lambda x: torch.relu(x) * (factor if x.norm() > 1e9 else 1.0)


def test_what_is_set_on_a_module_is_part_of_its_identity_even_where_no_probe_meets_it():
    """A threshold or a function that only some clients' models reach: neither layers, source nor losses show it."""
    assert settings_of(limit=1e8) == settings_of(limit=1e8)
    assert settings_of(limit=1e8) != settings_of(limit=2e8)
    assert settings_of(squash=scaled_by(2.0)) == settings_of(squash=scaled_by(2.0))
    assert settings_of(squash=scaled_by(2.0)) != settings_of(squash=scaled_by(3.0))
