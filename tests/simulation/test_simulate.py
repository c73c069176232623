"""Federated averaging, recorded: the golden trajectory, equal bytes, resumption, and who may enter the mean."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedworth.errors import ArtefactError, DataError
from fedworth.games.federation import RecordedFederation
from fedworth.games.observe import utility_matrix
from fedworth.ledger.ledger import Ledger, Model
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.oracle.oracle import LoopOracle
from fedworth.simulation.models import ModelSpec, build_model
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import (
    Federation,
    average,
    federation_of,
    participants_of,
    run_rounds,
    simulate,
    task_of,
)
from fedworth.simulation.training import ClientData
from fedworth.task.task import Task

Golden = dict[str, np.ndarray]


def same(a: Model, b: Model) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def mean_by_hand(models: list[Model]) -> dict[str, np.ndarray]:
    return {name: np.mean([model[name].double().numpy() for model in models], axis=0) for name in models[0]}


@pytest.fixture(scope="module")
def g2(golden: Callable[[str], Golden]) -> Golden:
    return golden("g2_fedavg_logreg")


@pytest.fixture(scope="module")
def golden_ledger(g2: Golden, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The golden federation through the real code: its data, its participants, its start."""
    n_clients = int(g2["N"])
    data = tuple(
        ClientData(
            torch.from_numpy(g2[f"X{k}"]),
            torch.from_numpy(g2[f"y{k}"]),
            str(g2[f"X{k}"].tobytes() + g2[f"y{k}"].tobytes()),
        )
        for k in range(n_clients)
    )
    names = tuple(str(k) for k in range(n_clients))
    rate, n_steps = float(g2["lr"]), int(g2["steps"])
    federation = Federation(names, lambda _: data, golden_module(), SimulationSettings(n_steps=n_steps, rate=rate))
    folder = tmp_path_factory.mktemp("golden") / "ledger"
    writer = LedgerWriter.create(folder, names, aggregation="uniform")
    start = {"1.weight": torch.from_numpy(g2["w0_0"].T.copy()), "1.bias": torch.from_numpy(g2["w0_1"])}
    run_rounds(federation, writer, [np.flatnonzero(row).tolist() for row in g2["sel"]], start=start)
    return Ledger.open(folder)


def golden_module() -> torch.nn.Module:
    return build_model(ModelSpec("logistic", (60,), 10, dtype="float64"))


def golden_task(g2: Golden) -> Task:
    return Task(golden_module(), torch.from_numpy(g2["Xc"]), torch.from_numpy(g2["yc"]))


def flat(model: Model) -> np.ndarray:
    """As in the golden file: W (in × out), then b."""
    return np.concatenate([model["1.weight"].numpy().T.ravel(), model["1.bias"].numpy()])


def test_the_global_models_are_the_golden_ones(golden_ledger, g2):
    found = [flat(round_.global_model) for round_ in golden_ledger.rounds()]
    found.append(flat(golden_ledger.final_model()))
    np.testing.assert_allclose(found, g2["out_w"], rtol=1e-9, atol=1e-12)


def test_the_test_losses_are_the_golden_ones(golden_ledger, g2):
    task = golden_task(g2)
    losses = [
        float(
            F.cross_entropy(torch.func.functional_call(task.module, round_.global_model, (task.inputs,)), task.labels)
        )
        for round_ in golden_ledger.rounds()
    ]
    np.testing.assert_allclose(losses, g2["out_test_loss"], rtol=1e-9, atol=1e-12)


def test_the_full_utility_matrix_is_the_golden_one(golden_ledger, g2):
    """Column c of the golden matrix is the coalition whose bit i stands for client i."""
    federation = RecordedFederation(golden_ledger, LoopOracle(golden_task(g2)), "uniform")
    everyone = np.arange(2**6)[:, None] >> np.arange(6) & 1 == 1  # (64, 6)
    truth = [federation.true_game(t).utilities(everyone).sum(axis=1) for t in range(federation.n_rounds)]
    np.testing.assert_allclose(truth, g2["out_U"], rtol=1e-9, atol=1e-12)
    seen = utility_matrix(federation, None)
    assert np.array_equal(seen.participants, g2["sel"])
    for round_index in range(seen.n_rounds):
        measured = seen.row(round_index, everyone).sum(axis=1)
        known = ~np.isnan(measured)
        assert known.sum() == 2 ** g2["sel"][round_index].sum()
        assert np.array_equal(measured[known], truth[round_index][known])


def test_the_last_golden_client_trains_to_the_first_ones_model(golden_ledger):
    for round_ in golden_ledger.rounds(with_apart=True):
        models = {**round_.client_models, **round_.apart_models}
        assert same(models[0], models[5])


def test_the_same_seed_gives_the_same_bytes(tiny_settings, tiny_ledger, tmp_path, bytes_of):
    simulate(tiny_settings, tmp_path / "again")
    again = bytes_of(tmp_path / "again")
    assert again == bytes_of(tiny_ledger.folder)
    assert {"federation.json", "manifest.jsonl", "final.safetensors", "rounds/000002.safetensors"} <= set(again)


def test_another_seed_gives_other_bytes(tiny_settings, tiny_ledger, tmp_path, bytes_of):
    simulate(replace(tiny_settings, seed=4), tmp_path / "other")
    other, first = bytes_of(tmp_path / "other"), bytes_of(tiny_ledger.folder)
    assert all(other[file] != first[file] for file in ("federation.json", "manifest.jsonl", "final.safetensors"))


class Killed(BaseException):
    """What no code under test catches."""


def killing(at: int) -> Callable[[str, int, int], None]:
    def progress(what: str, n_done: int, n_all: int) -> None:  # noqa: ARG001
        if n_done == at:
            raise Killed

    return progress


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_run_killed_before_any_round_and_resumed_gives_equal_bytes(
    tiny_settings, tiny_ledger, tmp_path, bytes_of, at
):
    with pytest.raises(Killed):
        simulate(tiny_settings, tmp_path / "ledger", progress=killing(at))
    assert Ledger.open(tmp_path / "ledger").n_rounds == at
    simulate(tiny_settings, tmp_path / "ledger", resume=True)
    assert bytes_of(tmp_path / "ledger") == bytes_of(tiny_ledger.folder)


def test_a_run_killed_at_any_write_and_resumed_gives_equal_bytes(
    tiny_settings, tiny_ledger, tmp_path, bytes_of, monkeypatch
):
    """A copy of the folder at every flush to the disk is what a kill at that moment leaves."""
    copies: list[Path] = []
    flush = os.fsync

    def copying(descriptor: int) -> None:
        copies.append(shutil.copytree(tmp_path / "whole", tmp_path / f"copy {len(copies)}"))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", copying)
    simulate(tiny_settings, tmp_path / "whole")
    monkeypatch.undo()
    assert len(copies) >= 3 * 3  # a round's file, what is kept apart, the manifest's line
    for copy in copies:
        simulate(tiny_settings, copy, resume=True)
        assert bytes_of(copy) == bytes_of(tiny_ledger.folder), copy.name


def test_a_run_interrupted_at_any_write_and_resumed_gives_equal_bytes(
    tiny_settings, tiny_ledger, tmp_path, bytes_of, monkeypatch
):
    """Ctrl-C raises wherever the program happens to be, and what is cleared up on the way out must be enough."""
    flush = os.fsync
    n_flushes, last = 0, 0

    def interrupted(descriptor: int) -> None:
        nonlocal n_flushes
        n_flushes += 1
        if n_flushes == last:
            raise KeyboardInterrupt
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", interrupted)
    simulate(tiny_settings, tmp_path / "whole")
    for moment in range(1, n_flushes + 1):
        folder = tmp_path / f"interrupted {moment}"
        n_flushes, last = 0, moment
        with pytest.raises(KeyboardInterrupt):
            simulate(tiny_settings, folder)
        last = 0
        simulate(tiny_settings, folder, resume=True)
        assert bytes_of(folder) == bytes_of(tiny_ledger.folder), folder.name


def test_resuming_a_finished_run_changes_nothing(tiny_settings, tmp_path, bytes_of):
    simulate(tiny_settings, tmp_path / "ledger")
    before = bytes_of(tmp_path / "ledger")
    assert simulate(tiny_settings, tmp_path / "ledger", resume=True).is_closed
    assert bytes_of(tmp_path / "ledger") == before


def test_resuming_what_was_never_begun_begins_it(tiny_settings, tiny_ledger, tmp_path, bytes_of):
    simulate(tiny_settings, tmp_path / "ledger", resume=True)
    assert bytes_of(tmp_path / "ledger") == bytes_of(tiny_ledger.folder)


@pytest.mark.parametrize("changes", [{"seed": 4}, {"rate": 0.2}, {"n_rounds": 4}, {"with_truth": False}])
def test_resuming_with_other_settings_is_refused_by_their_name(tiny_settings, tmp_path, bytes_of, changes):
    with pytest.raises(Killed):
        simulate(tiny_settings, tmp_path / "ledger", progress=killing(1))
    before = bytes_of(tmp_path / "ledger")
    with pytest.raises(
        ArtefactError, match=rf"recorded with other settings \({next(iter(changes))} \S+ instead of \S+\)"
    ):
        simulate(replace(tiny_settings, **changes), tmp_path / "ledger", resume=True)
    assert bytes_of(tmp_path / "ledger") == before


def test_a_ledger_that_exists_is_not_overwritten(tiny_settings, tmp_path, bytes_of):
    simulate(tiny_settings, tmp_path / "ledger")
    before = bytes_of(tmp_path / "ledger")
    with pytest.raises(ArtefactError, match="a ledger exists already"):
        simulate(tiny_settings, tmp_path / "ledger")
    assert bytes_of(tmp_path / "ledger") == before


def test_participants_in_any_order_give_the_same_ledger(tmp_path, bytes_of):
    rng = np.random.default_rng(0)
    data = tuple(
        ClientData(torch.from_numpy(rng.normal(size=(9, 5)).astype(np.float32)), torch.arange(9) % 3, str(k))
        for k in range(4)
    )
    module = build_model(ModelSpec("logistic", (5,), 3))
    settings = SimulationSettings(n_steps=2, rate=0.7, aggregation="samples")
    federation = Federation(("a", "b", "c", "d"), lambda _: data, module, settings)
    for name, participants in (("ordered", [[0, 1, 3], [1, 2, 3]]), ("mixed", [[3, 0, 1], [2, 3, 1]])):
        writer = LedgerWriter.create(tmp_path / name, federation.clients, aggregation="samples")
        run_rounds(federation, writer, participants)
    assert bytes_of(tmp_path / "ordered") == bytes_of(tmp_path / "mixed")


def test_the_global_model_is_the_mean_of_the_participants_and_of_nobody_else(tiny_ledger):
    rounds = list(tiny_ledger.rounds(with_apart=True))
    after = [*(round_.global_model for round_ in rounds[1:]), tiny_ledger.final_model()]
    for round_, following in zip(rounds, after, strict=True):
        assert set(round_.client_models) == set(round_.entry.participants)
        assert set(round_.client_models) | set(round_.apart_models) == set(range(5))
        assert not set(round_.client_models) & set(round_.apart_models)
        for name, mean in mean_by_hand(list(round_.client_models.values())).items():
            np.testing.assert_allclose(following[name].numpy(), mean, rtol=1e-6, atol=1e-7)
    absent = mean_by_hand([*rounds[1].client_models.values(), *rounds[1].apart_models.values()])
    assert any(not np.allclose(after[1][name].numpy(), mean, atol=1e-5) for name, mean in absent.items())


def test_without_the_truth_the_trajectory_is_the_same_to_the_bit(tiny_settings, tiny_ledger, tmp_path, bytes_of):
    ledger = simulate(replace(tiny_settings, with_truth=False), tmp_path / "ledger")
    with_truth, without = bytes_of(tiny_ledger.folder), bytes_of(ledger.folder)
    trained = [file for file in with_truth if file.startswith(("rounds/", "final"))]
    assert [without[file] for file in trained] == [with_truth[file] for file in trained]
    assert not any(file.startswith("apart/") for file in without)
    assert all(entry.apart == () for entry in ledger.entries)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_steps": 3, "batch_size": 8},
        {"n_steps": None, "n_epochs": 2, "batch_size": 8},
        {"model": "cnn", "hidden": (2, 3, 4), "n_steps": 2, "batch_size": 16},
        {"noise_shares": (0.5, 0.0, 0.0, 0.0, 0.5), "flip_shares": (0.3, 0.0, 0.0, 0.0, 0.3)},
        {"dataset": "synthetic", "partition": "natural", "model": "logistic", "train_limit": 600},
        {"partition": "iid", "aggregation": "samples"},
    ],
    ids=["full batch", "mini-batches", "epochs", "one after the other", "noise", "synthetic", "iid, by samples"],
)
def test_a_copy_has_the_model_of_its_source_in_every_round_to_the_bit(tiny_settings, tmp_path, changes):
    ledger = simulate(replace(tiny_settings, n_rounds=6, **changes), tmp_path / "ledger")
    taking_part = []
    for round_ in ledger.rounds(with_apart=True):
        models = {**round_.client_models, **round_.apart_models}
        assert same(models[0], models[4])
        assert not same(models[0], models[1])
        taking_part.append({0, 4} & set(round_.entry.participants))
    assert taking_part[0] == {0, 4}
    assert any(len(members) == 1 for members in taking_part)  # one is in, the other absent


def test_k_of_n_take_part_and_everyone_in_the_first_round(tiny_settings, tiny_ledger):
    rounds = participants_of(replace(tiny_settings, n_rounds=20))
    assert rounds[0] == [0, 1, 2, 3, 4]
    assert all(len(set(row)) == 2 and row == sorted(row) for row in rounds[1:])
    assert [list(entry.participants) for entry in tiny_ledger.entries] == rounds[:3]
    unheard = participants_of(replace(tiny_settings, n_rounds=20, everyone_heard=False))
    assert len(unheard[0]) == 2
    assert unheard[1:] == rounds[1:]


def test_every_client_takes_part_equally_often(tiny_settings):
    """Hoeffding: a share over T rounds is ε or more from K/N with chance ≤ 2 exp(−2Tε²)."""
    n_rounds, deviation = 1000, 0.0864
    rounds = participants_of(replace(tiny_settings, n_rounds=n_rounds, everyone_heard=False))
    shares = np.bincount(np.concatenate(rounds), minlength=5) / n_rounds
    assert 2 * np.exp(-2 * n_rounds * deviation**2) < 1e-6
    assert np.abs(shares - 2 / 5).max() < deviation


def test_clients_of_higher_availability_take_part_more_often(tiny_settings):
    weights = (4.0, 1.0, 1.0, 1.0, 0.0)
    rounds = participants_of(replace(tiny_settings, n_rounds=1000, everyone_heard=False, availability=weights))
    counts = np.bincount(np.concatenate(rounds), minlength=5)
    assert counts[0] > 1.5 * counts[1:4].max()
    assert counts[1:4].min() > 300
    assert counts[4] == 0


def test_another_training_seed_keeps_data_and_start_but_draws_other_batches_and_participants(tiny_settings, tmp_path):
    many = replace(tiny_settings, batch_size=8, n_rounds=12)
    first, again, other = (
        simulate(replace(many, training_seed=seed), tmp_path / str(k)) for k, seed in enumerate((None, 3, 4))
    )
    assert same(first.final_model(), again.final_model())
    start, other_start = (ledger.open_round(0, with_apart=True) for ledger in (first, other))
    assert same(start.global_model, other_start.global_model)
    assert start.entry.sample_counts == other_start.entry.sample_counts
    assert not same(start.client_models[1], other_start.client_models[1])
    assert participants_of(many) != participants_of(replace(many, training_seed=4))
    assert task_of(first).fingerprint == task_of(other).fingerprint


def all_models(ledger: Ledger, round_index: int) -> dict[int, Model]:
    found = ledger.open_round(round_index, with_apart=True)
    return {**found.client_models, **found.apart_models}


def test_noise_may_begin_in_a_later_round(tiny_settings, tmp_path):
    shares = (0.0, 1.0, 0.0, 0.0, 0.0)
    clean = simulate(tiny_settings, tmp_path / "clean")
    turning = simulate(replace(tiny_settings, flip_shares=shares, noise_from=1), tmp_path / "turning")
    assert same(clean.open_round(1).global_model, turning.open_round(1).global_model)
    before, after = all_models(clean, 1), all_models(turning, 1)
    assert [k for k in range(5) if not same(before[k], after[k])] == [1]


def test_drifting_clients_change_from_the_second_round_on_and_copies_stay_copies(tiny_settings, tmp_path):
    still = simulate(tiny_settings, tmp_path / "still")
    drifting = simulate(replace(tiny_settings, drift=0.8), tmp_path / "drifting")
    assert same(still.open_round(1).global_model, drifting.open_round(1).global_model)
    before, after = all_models(still, 1), all_models(drifting, 1)
    assert not any(same(before[k], after[k]) for k in range(5))
    assert all(same(all_models(drifting, t)[0], all_models(drifting, t)[4]) for t in range(3))


@pytest.mark.parametrize("partition", ["natural", "iid", "quantity"])
def test_a_federation_learns_a_regression(partition, tmp_path):
    settings = SimulationSettings(
        "regression", partition=partition, model="mlp", hidden=(16,), n_clients=4, n_rounds=1, rate=0.1, n_steps=20
    )
    ledger = simulate(settings, tmp_path / "ledger")
    task = task_of(ledger)
    found = RecordedFederation(ledger, LoopOracle(task), "uniform").true_game(0).utilities(np.ones((1, 4), bool))
    assert task.loss == "squared-error"
    assert found.sum() > 0.1  # of a variance of 1


def test_the_first_rounds_do_not_depend_on_how_many_follow(tiny_settings, tmp_path, tiny_ledger, bytes_of):
    simulate(replace(tiny_settings, n_rounds=5), tmp_path / "longer")
    longer, shorter = bytes_of(tmp_path / "longer"), bytes_of(tiny_ledger.folder)
    rounds = [file for file in shorter if file.startswith(("rounds/", "apart/"))]
    assert [longer[file] for file in rounds] == [shorter[file] for file in rounds]


@pytest.mark.parametrize(("aggregation", "expected"), [("uniform", 2.0), ("samples", 3.5)])
def test_models_are_averaged_uniformly_or_by_samples(aggregation, expected):
    answers = [Answer({"w": torch.tensor([0.0])}, 1), Answer({"w": torch.tensor([4.0])}, 7)]
    assert average(answers, aggregation)["w"].item() == expected


def test_whole_numbers_are_averaged_to_the_nearest_not_cut_off():
    """A batch norm counts its batches; ten tenths of 3 are 2.9999999999999996 in float64."""
    answers = [Answer({"n_batches": torch.tensor(3)}, 1)] * 10
    mean = average(answers, "uniform")["n_batches"]
    assert mean.item() == 3
    assert mean.dtype == torch.int64


def test_the_task_is_remade_from_the_ledger(tiny_ledger, tiny_task):
    assert tiny_task.fingerprint == tiny_ledger.settings["test_sha256"]
    assert len(tiny_task.labels) == 60


def test_a_task_on_another_test_set_is_refused(tiny_ledger):
    changed = replace(tiny_ledger, settings={**tiny_ledger.settings, "test_sha256": "0" * 64})
    with pytest.raises(DataError, match="the data set or its library has changed since"):
        task_of(changed)


def test_a_task_of_a_federation_that_was_not_simulated_is_refused(tiny_ledger):
    with pytest.raises(DataError, match="not a simulated federation; name its task with --task"):
        task_of(replace(tiny_ledger, settings={}))


def test_nothing_is_written_when_the_federation_cannot_be_made(tiny_settings, tmp_path):
    with pytest.raises(DataError):
        simulate(replace(tiny_settings, partition="natural"), tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


def test_progress_is_told_every_round_and_the_end(tiny_settings, tmp_path):
    told: list[tuple[int, int]] = []
    simulate(tiny_settings, tmp_path / "ledger", progress=lambda _, done, n_all: told.append((done, n_all)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.skipif(
    not Path(os.environ.get("FEDWORTH_DATA", ""), "mnist", "train-images-idx3-ubyte.gz").is_file(),
    reason="FEDWORTH_DATA is not set or holds no MNIST, and a test fetches nothing",
)
def test_a_federation_learns_from_real_mnist(tmp_path):
    settings = SimulationSettings(dataset="mnist", n_rounds=2, train_limit=500, test_limit=200)
    ledger = simulate(settings, tmp_path / "ledger", data_folder=Path(os.environ["FEDWORTH_DATA"]))
    task = task_of(ledger, data_folder=Path(os.environ["FEDWORTH_DATA"]))
    federation = RecordedFederation(ledger, LoopOracle(task), "uniform")
    assert ledger.n_rounds == 2
    assert federation.game(0).utilities(np.ones((1, 10), dtype=bool)).sum() > 0


def test_settings_of_other_clients_than_the_ledgers_are_refused_before_anything_is_made(tiny_ledger):
    settings = {**tiny_ledger.settings["simulation"], "n_clients": 10**5}
    forged = replace(tiny_ledger, settings={**tiny_ledger.settings, "simulation": settings})
    with pytest.raises(DataError, match="name 100000 clients, the ledger has 5; its header was edited"):
        task_of(forged)


def test_a_halved_copy_and_its_source_have_one_clients_samples_together():
    settings = SimulationSettings(n_clients=5, copies=((4, 0),), train_limit=100, test_limit=20)
    (whole, *others, _), (first, *same, second) = (
        federation_of(replace(settings, copies_halved=is_halved)).data_in(0) for is_halved in (False, True)
    )
    assert torch.equal(torch.cat([first.inputs, second.inputs]), whole.inputs)
    assert abs(len(first) - len(second)) <= 1
    assert [data.fingerprint for data in same] == [data.fingerprint for data in others]
