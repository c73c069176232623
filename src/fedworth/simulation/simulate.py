"""Simulate a federation by federated averaging and record it in a ledger (Section III of the paper).

In round t the server sends w^t, the participants I_t train, and w^{t+1} is the mean of their models (eq. global_step).
In the first round everyone takes part (Assumption 1), unless asked otherwise. For the ground truth the absent clients
train too; the ledger keeps their models apart, and the mean leaves them out. Every random draw has its own stream of
the seed, so a resumed federation gives the same bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedworth.arrays import Memberships, stream
from fedworth.errors import ArtefactError, DataError, UsageError
from fedworth.ledger.embeddings import EMBEDDINGS
from fedworth.ledger.ledger import Ledger, Model
from fedworth.ledger.manifest import is_ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.names import Aggregation
from fedworth.records import differing
from fedworth.simulation.clients import distinct_clients, divide, drifted, flipped_labels, noisy_features
from fedworth.simulation.datasets import Dataset, DatasetRequest, Samples, load_dataset
from fedworth.simulation.models import DTYPES, ModelSpec, build_model, state_of
from fedworth.simulation.settings import SimulationSettings, settings_from
from fedworth.simulation.training import ClientData, client_data, train_clients
from fedworth.simulation.vertical import record_vertical, vertical_federation
from fedworth.storage import Place, Progress, silent
from fedworth.task.task import Task
from fedworth.threads import fitting_threads

Misconduct = Callable[[int, Model, dict[str, Answer]], dict[str, Answer]]
"""Changes a round's answers (round, global model, answers) before the server gets them, for studies of clients that
cheat. It is no setting, so a federation with it cannot be resumed."""


@dataclass(frozen=True)
class Federation:
    """Clients with their data, the module that they train, and how they train it."""

    clients: tuple[str, ...]
    data_in: Callable[[int], Sequence[ClientData]]  # every client's samples in a round
    module: nn.Module
    settings: SimulationSettings


def simulate(
    settings: SimulationSettings,
    folder: Place,
    *,
    data_folder: Place | None = None,
    resume: bool = False,
    misconduct: Misconduct | None = None,
    progress: Progress = silent,
) -> Ledger:
    """Train a federation as the settings say, and record it in a ledger.

    Args:
        settings: The federation.
        folder: Where its ledger is written.
        data_folder: Folder of the data sets; `$FEDWORTH_DATA` if it is not given.
        resume: Continue the ledger of a killed run.
        misconduct: Changes answers before the server gets them, for studies of clients that cheat.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        The ledger, closed.

    Example:
        ledger = fedworth.simulate(fedworth.SimulationSettings(n_clients=4, n_rounds=3), "new.ledger")
    """
    folder, dataset = Path(folder), _dataset(settings, data_folder)
    is_vertical = settings.partition == "vertical"
    if is_vertical and misconduct is not None:
        raise UsageError("misconduct changes models, and clients of a vertical federation send none; leave it out")
    task = _task(settings, dataset)
    document = {"simulation": settings.document(), "test_sha256": task.fingerprint}
    chosen = participants_of(settings)
    record: Callable[[LedgerWriter], None]
    if is_vertical:
        vertical, server = vertical_federation(settings, dataset)
        document[EMBEDDINGS] = server.form.document()
        record = partial(record_vertical, vertical, participants=chosen, progress=progress)
    else:
        federation = _federation(settings, dataset)
        record = partial(
            run_rounds,
            federation,
            participants=chosen,
            with_truth=settings.with_truth,
            misconduct=misconduct,
            progress=progress,
        )
    if resume and is_ledger(folder):
        found = Ledger.open(folder)
        others = differing(simulation_of(found).document(), settings.document())
        if others or found.settings.get("test_sha256") != task.fingerprint:
            raise ArtefactError(
                f"{folder}: recorded with other settings ({others or 'another test set'}); "
                "resume with the same ones, or name another folder"
            )
        writer = LedgerWriter.resume(folder)  # also renames a final model, if the run was killed just before
        if writer.is_closed:
            return found
    else:
        clients = [str(k) for k in range(settings.n_clients)]
        writer = LedgerWriter.create(folder, clients, aggregation=settings.aggregation, settings=document)
    try:
        record(writer)
    finally:
        writer.release()
    return Ledger.open(folder)


def simulation_of(ledger: Ledger) -> SimulationSettings:
    if ledger.simulation is None:
        raise DataError(f"{ledger.folder}: not a simulated federation; name its task with --task FILE.py:NAME")
    return settings_from(dict(ledger.simulation))


def task_of(ledger: Ledger, *, data_folder: Place | None = None) -> Task:
    """The task of a simulated federation, made again from its settings.

    Args:
        ledger: The ledger of a simulation.
        data_folder: Folder of the data sets; `$FEDWORTH_DATA` if it is not given.

    Returns:
        The task, checked to be the one that the federation had.

    Example:
        task = fedworth.task_of(fedworth.Ledger.open("runs/demo/ledger"))
    """
    settings, expected = simulation_of(ledger), ledger.settings.get("test_sha256")
    if settings.n_clients != len(ledger.clients):
        found = f"the settings name {settings.n_clients} clients, the ledger has {len(ledger.clients)}"
        raise DataError(f"{ledger.folder}: {found}; its header was edited")
    task = _task(settings, _dataset(settings, data_folder))
    if task.fingerprint != expected:
        found = f"test set has sha256 {task.fingerprint}, expected {expected}"
        raise DataError(f"{ledger.folder}: {found}; the data set or its library has changed since")
    return task


def federation_of(settings: SimulationSettings, *, data_folder: Place | None = None) -> Federation:
    return _federation(settings, _dataset(settings, data_folder))


def participants_of(settings: SimulationSettings) -> list[list[int]]:
    """Who takes part in each round: K of N, by availability; everyone in the first unless asked otherwise."""
    rounds: list[list[int]] = []
    weights = np.array(settings.availability)
    chances = weights / weights.sum() if settings.availability else None  # (n_clients,)
    for round_index in range(settings.n_rounds):
        rng = stream(settings.seed_of_training, "participants", round_index)
        chosen = rng.choice(settings.n_clients, settings.n_participants, replace=False, p=chances)
        everyone = settings.everyone_heard and round_index == 0
        rounds.append(list(range(settings.n_clients)) if everyone else sorted(chosen.tolist()))
    return rounds


def run_rounds(
    federation: Federation,
    writer: LedgerWriter,
    participants: Sequence[Sequence[int]],
    *,
    start: Model | None = None,
    with_truth: bool = True,
    misconduct: Misconduct | None = None,
    progress: Progress = silent,
) -> None:
    """Train and record the rounds that the ledger does not have yet, then close it."""
    everyone = range(len(federation.clients))
    model = state_of(federation.module) if start is None else start
    if writer.n_rounds:
        model = _model_after(writer.folder, federation.settings.aggregation)
    for round_index in range(writer.n_rounds, len(participants)):
        progress("training rounds", round_index, len(participants))
        chosen = sorted(participants[round_index])  # a fixed order of summation: a resumed run gives the same bits
        absent = [k for k in everyone if k not in chosen] if with_truth else []
        trained: dict[str, Model] = {}
        answers = answers_of_round(federation, model, chosen, round_index, trained)
        apart = answers_of_round(federation, model, absent, round_index, trained)
        if misconduct is not None:
            answers = misconduct(round_index, model, answers)
        writer.record_round(model, answers, apart=apart)
        model = average(list(answers.values()), federation.settings.aggregation)
    writer.close(model)
    progress("training rounds", len(participants), len(participants))


def average(answers: Sequence[Answer], aggregation: Aggregation) -> Model:
    """The mean of the clients' models: uniform, or weighted by their sample counts. Summed in float64."""
    counts = np.array([answer.n_samples for answer in answers], dtype=np.float64)
    weights = np.full(len(answers), 1 / len(answers)) if aggregation == "uniform" else counts / counts.sum()
    mean: Model = {}
    for name, like in answers[0].model.items():
        total = torch.zeros(like.shape, dtype=torch.float64)
        for weight, answer in zip(weights.tolist(), answers, strict=True):
            total += weight * answer.model[name].to(torch.float64)
        mean[name] = (total if like.is_floating_point() else total.round()).to(like.dtype)
    return mean


def answers_of_round(
    federation: Federation, model: Model, chosen: Sequence[int], round_index: int, trained: dict[str, Model]
) -> dict[str, Answer]:
    """The answer of each of these clients to a global model; `trained` holds models trained on equal data."""
    everyones = federation.data_in(round_index)
    data = [everyones[k] for k in chosen]
    with fitting_threads(federation.module):
        models = train_clients(
            federation.module, model, data, federation.settings, round_index=round_index, trained=trained
        )
    return {federation.clients[k]: Answer(m, len(d)) for k, d, m in zip(chosen, data, models, strict=True)}


def retrained_models(
    ledger: Ledger,
    coalitions: Memberships,
    *,
    data_folder: Place | None = None,
    misconduct: Misconduct | None = None,
) -> Iterator[Model]:
    """Train coalitions of a simulated federation again, without the other clients.

    Members train in the rounds in which they took part. A round without any of them changes nothing.

    Args:
        ledger: The ledger of a simulation.
        coalitions: (n_coalitions, n_clients): who is a member.
        data_folder: Folder of the data sets; `$FEDWORTH_DATA` if it is not given.
        misconduct: Changes answers, as in `simulate`.

    Returns:
        The final model of each coalition, one after the other.

    Example:
        ledger = fedworth.Ledger.open("runs/demo/ledger")
        everyone = numpy.ones((1, len(ledger.clients)), dtype=bool)
        (model,) = fedworth.retrained_models(ledger, everyone)
    """
    settings = simulation_of(ledger)
    federation, rounds = federation_of(settings, data_folder=data_folder), participants_of(settings)
    for row in coalitions:
        model = state_of(federation.module)
        for round_index, participants in enumerate(rounds):
            chosen = [k for k in participants if row[k]]
            if chosen:
                answers = answers_of_round(federation, model, chosen, round_index, {})
                if misconduct is not None:
                    answers = misconduct(round_index, model, answers)
                model = average(list(answers.values()), federation.settings.aggregation)
        yield model


def _model_after(folder: Path, aggregation: Aggregation) -> Model:
    """The global model after the last recorded round, as the server had it before it was killed."""
    ledger = Ledger.open(folder)
    last = ledger.open_round(ledger.n_rounds - 1)
    counts = dict(zip(last.entry.answered, last.entry.sample_counts, strict=True))
    return average([Answer(last.client_models[k], counts[k]) for k in last.entry.participants], aggregation)


def _dataset(settings: SimulationSettings, data_folder: Place | None) -> Dataset:
    rng, n_clients = stream(settings.seed, "data set"), len(distinct_clients(settings.n_clients, dict(settings.copies)))
    folder, limits = None if data_folder is None else Path(data_folder), (settings.train_limit, settings.test_limit)
    return load_dataset(
        settings.dataset, DatasetRequest(rng, n_clients, folder, *limits, settings.alpha, settings.beta)
    )


def _federation(settings: SimulationSettings, dataset: Dataset) -> Federation:
    if settings.partition == "vertical":
        raise UsageError("a vertical federation has no models that are averaged, so none can be trained again")
    rng, copies = stream(settings.seed, "partition"), dict(settings.copies)
    skew = {"alpha": settings.alpha, "beta": settings.beta}
    parts = divide(dataset, settings.partition, settings.n_clients, copies, rng=rng, **skew)

    @lru_cache(maxsize=1)
    def prepared(drift: float, is_noisy: bool) -> list[ClientData]:
        distinct = distinct_clients(len(parts), copies)  # copies stay copies
        moved = dict(zip(distinct, drifted([parts[k] for k in distinct], drift), strict=True))
        samples = [moved[copies.get(k, k)] for k in range(len(parts))]
        if is_noisy:
            samples = [_with_noise(part, k, settings, dataset.n_classes) for k, part in enumerate(samples)]
        for copy, source in copies.items() if settings.copies_halved else ():
            first, second = np.array_split(np.arange(len(samples[source])), 2)
            samples[source], samples[copy] = samples[source].take(first), samples[source].take(second)
        for copy in copies if settings.copies_shuffled else ():
            order = stream(settings.seed, "copy order", copy).permutation(len(samples[copy]))
            samples[copy] = samples[copy].take(order)
        return [client_data(part, DTYPES[settings.dtype]) for part in samples]

    def data_in(round_index: int) -> list[ClientData]:
        elapsed = round_index / max(settings.n_rounds - 1, 1)
        return prepared(settings.drift * elapsed, round_index >= settings.noise_from)

    return Federation(
        clients=tuple(str(k) for k in range(settings.n_clients)),
        data_in=data_in,
        module=build_model(_spec(settings, dataset), seed=settings.seed),
        settings=settings,
    )


def _with_noise(samples: Samples, client: int, settings: SimulationSettings, n_classes: int) -> Samples:
    """A client's samples with noise; a copy draws the same noise as its source."""
    source = dict(settings.copies).get(client, client)
    if settings.noise_shares:
        rng = stream(settings.seed, "feature noise", source)
        samples = noisy_features(samples, settings.noise_shares[client], settings.noise_strength, rng=rng)
    if settings.flip_shares:
        rng = stream(settings.seed, "label flips", source)
        samples = flipped_labels(samples, settings.flip_shares[client], n_classes, rng=rng)
    return samples


def _task(settings: SimulationSettings, dataset: Dataset) -> Task:
    if settings.partition == "vertical":
        return vertical_federation(settings, dataset)[1].task()
    inputs = torch.from_numpy(dataset.test.features).to(DTYPES[settings.dtype])
    module = build_model(_spec(settings, dataset), seed=settings.seed)
    labels = torch.from_numpy(dataset.test.labels)
    if dataset.test.has_numbers:
        return Task(module, inputs, labels.to(inputs.dtype), loss="squared-error")
    return Task(module, inputs, labels)


def _spec(settings: SimulationSettings, dataset: Dataset) -> ModelSpec:
    shape = tuple(dataset.train.features.shape[1:])
    hidden, divisor = settings.hidden, settings.width_divisor
    return ModelSpec(settings.model, shape, dataset.n_classes, hidden, divisor, settings.dtype)
