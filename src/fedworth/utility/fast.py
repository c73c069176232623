"""The fast oracle: the same utilities as the plain loop's, for a small part of its work.

Comes in: a task, then round after round its models and the coalitions' mixtures. Goes out: one utility a mixture. The
module decides the route (`routes`), the round which tensors vary: those equal in all models count as constants, and
what the test samples alone make of them is kept from round to round. `describe` says which routes were taken and why.

Same inputs give the same bytes: work is cut up by samples and coalitions, never by threads, and torch's own threads
are kept out of it.
"""

import copy
import os
import threading
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedworth.arrays import Utilities
from fedworth.errors import ModelError, UsageError, UtilityError, unknown_name
from fedworth.federation.fitting import fitted
from fedworth.federation.ledger import Model, Round
from fedworth.federation.models import state_of
from fedworth.federation.task import Task
from fedworth.utility.affine import Batch, batches, in_order, one_torch_thread, qualities, quality
from fedworth.utility.heads import Shares, head_losses, shares_of
from fedworth.utility.mixing import RoundModels, channels_last, is_same, round_models, varying_tensors
from fedworth.utility.oracle import MEASURES, LoopOracle
from fedworth.utility.routes import Kind, Route, Routes
from fedworth.utility.selfcheck import plain_logits
from fedworth.utility.stages import constant_tensors
from fedworth.utility.twins import gathered, twins
from fedworth.utility.weighting import Mixtures

KEPT_BYTES = 1 << 30
"""What constants of the test set may take from one round to the next."""

Coefficients = NDArray[np.float64]


class FastOracle:
    """Measures utilities by the fastest way that agrees with the plain loop; by default on all the machine's cores."""

    def __init__(self, task: Task, measure: str = "loss", n_threads: int | None = None) -> None:
        if measure not in MEASURES:
            raise unknown_name("measure", measure, MEASURES)
        if n_threads is not None and n_threads < 1:
            raise UsageError(f"n_threads is {n_threads}, expected 1 or more")
        self.task = task
        self.measure = measure
        self.n_threads = n_threads or os.cpu_count() or 1
        self._routes = Routes(task)
        self._kept: _Kept | None = None

    def __reduce__(self) -> tuple[type["FastOracle"], tuple[Task, str, int]]:
        """What another process needs; it finds its routes for itself."""
        return FastOracle, (self.task, self.measure, self.n_threads)

    def describe(self) -> str:
        """The routes taken so far and why, one a line."""
        lines = dict.fromkeys(f"{route.kind}: {route.why}" for route in self._routes.taken())
        return "\n".join(lines) or "nothing measured yet"

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """One utility a mixture, in the order given."""
        round_ = fitted(round_, state_of(self.task.module))
        wanted = _Wanted.of(round_, mixtures, self.task.inputs.device)
        utilities = np.zeros(len(mixtures.of_global))  # a coalition that leaves w^t as it is has exactly 0
        if not wanted.is_changed.any():
            return utilities
        shares = wanted.shares if self.measure == "loss" else None
        n_changed, to_kernel = int(wanted.is_changed.sum()), shares is not None
        route = self._routes.route(wanted.origin, wanted.clients, wanted.varying, n_changed, to_kernel=to_kernel)
        if route.kind is Kind.PLAIN:
            return LoopOracle(self.task, self.measure).utilities(round_, mixtures)
        with one_torch_thread(), torch.inference_mode():
            if route.head is not None and shares is not None:
                utilities[wanted.is_changed] = self._by_kernel(route, wanted, shares)
            else:
                utilities[wanted.is_changed] = self._by_coalition(route, wanted)
        return np.asarray(utilities / len(self.task.labels))

    def _by_kernel(self, route: Route, wanted: "_Wanted", shares: Shares) -> Utilities:
        """Σ over samples of loss before minus loss after, along a trie."""
        assert route.stages is not None
        assert route.head is not None
        models = RoundModels(wanted.origin, tuple(wanted.clients), {}, (), route.images)
        samples = self._samples(route, wanted.origin)
        losses = head_losses(route.stages, route.head, models, shares, samples, n_threads=self.n_threads)
        return np.asarray(losses[-1] - losses[:-1])

    def _by_coalition(self, route: Route, wanted: "_Wanted") -> Utilities:
        """Σ over samples of quality after minus quality before; equal mixtures are evaluated once."""
        rows, places = np.unique(wanted.coefficients, axis=0, return_inverse=True)  # (n_rows, n_clients)
        rows = np.concatenate([rows, np.zeros((1, rows.shape[1]))])  # the global model itself
        models = round_models(wanted.origin, wanted.clients, wanted.varying, images=route.images)
        if route.stages is not None:
            samples = self._samples(route, models.origin)
            found = qualities(route.stages, models, rows, samples, measure=self.measure, n_threads=self.n_threads)
        else:
            found = self._by_loop(route, models, rows)
        return np.asarray((found[:-1] - found[-1])[places.ravel()])

    def _by_loop(self, route: Route, models: RoundModels, rows: Coefficients) -> Utilities:
        """The module itself, coalition by coalition; it is a thread's own, as loading a model changes it."""
        own, inputs = threading.local(), self._inputs(route)
        chunks = np.split(rows, range(models.together, len(rows), models.together))

        def of_chunk(chunk: Coefficients) -> list[float]:
            if not hasattr(own, "module"):
                own.module = copy.deepcopy(self._routes.module)
            mixed = models.mixed(chunk)
            tensors = [{**models.origin, **{name: t[i] for name, t in mixed.items()}} for i in range(len(chunk))]
            return [self._quality(own.module, model, inputs, route.batch_size) for model in tensors]

        return np.concatenate(in_order(of_chunk, chunks, self.n_threads))

    def _quality(self, module: nn.Module, model: Model, inputs: torch.Tensor, size: int) -> float:
        pairs = zip(torch.split(inputs, size), torch.split(self.task.labels, size), strict=True)
        return sum(quality(plain_logits(module, model, x), y, self.measure) for x, y in pairs)

    def _inputs(self, route: Route) -> torch.Tensor:
        return channels_last(self.task.inputs) if route.images else self.task.inputs

    def _samples(self, route: Route, origin: Model) -> list[Batch]:
        """The test set in batches with their constants, made again only if the tensors behind them have changed."""
        assert route.stages is not None
        if self._kept is None or not self._kept.serves(route, origin):
            made = batches(route.stages, origin, self._inputs(route), self.task.labels, route.batch_size)
            names = constant_tensors(route.stages)
            kept = _Kept(route, {name: origin[name].clone() for name in names}, made)
            self._kept = kept if kept.n_bytes <= KEPT_BYTES else None
            return made
        return self._kept.samples


@dataclass(frozen=True)
class _Kept:
    """Batches with their constants, and the tensors these were made from."""

    route: Route
    tensors: Model
    samples: list[Batch]

    def serves(self, route: Route, origin: Model) -> bool:
        return route is self.route and all(torch.equal(origin[name], t) for name, t in self.tensors.items())

    @property
    def n_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for batch in self.samples for t in batch.values.values())


@dataclass(frozen=True)
class _Wanted:
    """What is to be measured in a round: its models, and the mixtures that are not just the global model."""

    origin: Model
    clients: list[Model]
    varying: frozenset[str]
    is_changed: NDArray[np.bool_]  # (n_mixtures,)
    coefficients: Coefficients  # (n_changed, n_clients), 0 for clients who sent back w^t
    shares: Shares | None

    @classmethod
    def of(cls, round_: Round, mixtures: Mixtures, device: torch.device) -> "_Wanted":
        """Only clients in some mixture are looked at, and only their models moved to the device."""
        _check_sums(mixtures)
        members = np.flatnonzero(mixtures.of_clients.any(axis=0)).tolist()
        held = dict(enumerate(_models_of(members, round_)))
        origin, *clients = (_on(device, model) for model in (round_.global_model, *held.values()))
        moved = np.array([any(not is_same(m[name], t) for name, t in origin.items()) for m in clients], dtype=bool)
        given = mixtures.of_clients[:, members]  # (n_mixtures, n_clients)
        is_changed = (given * moved).any(axis=1)  # (n_mixtures,)
        shares = shares_of(given[is_changed], mixtures.of_global[is_changed])
        if shares is not None and shares.from_global:  # then a client who sent back w^t adds nothing to any sum
            shares = replace(shares, memberships=shares.memberships & moved)
        shares = None if shares is None else shares.interchanged(twins(held))
        changed = Mixtures((given * moved)[is_changed], mixtures.of_global[is_changed])
        coefficients = gathered(changed, held).of_clients
        return cls(origin, clients, varying_tensors(origin, clients), is_changed, coefficients, shares)


def _on(device: torch.device, model: Model) -> Model:
    return {name: tensor.to(device) for name, tensor in model.items()}


def _models_of(members: list[int], round_: Round) -> list[Model]:
    models = {**round_.client_models, **round_.apart_models}
    missing = sorted(set(members) - set(models))
    if missing:
        raise ModelError(f"clients {missing} have no model in this round, so no coalition with them can be measured")
    return [models[k] for k in members]


def _check_sums(mixtures: Mixtures) -> None:
    sums = mixtures.of_clients.sum(axis=1) + mixtures.of_global
    bad = np.flatnonzero(np.abs(sums - 1) > 1e-9)
    if len(bad):
        raise UtilityError(f"mixture {bad[0]}: coefficients sum to {sums[bad[0]]}, expected 1, as in any average")
