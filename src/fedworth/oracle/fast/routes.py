"""Routes: the ways to evaluate a module, the cheapest first, each checked against the plain loop before it is used.

    kernel   float32 on a CPU, and after the cut nothing but relu and linear layers: fused kernels along a trie
    prefix   the affine prefix once a client, the rest once a coalition, if averaging costs less than it saves
    graph    the whole graph once a coalition, from the constants on; batch norm folded, images channels-last
    loop     the module itself once a coalition: torch.export refuses it, or its graph cannot be cut
    plain    the plain loop's own batches: samples influence each other, half precision rounds differently, or models
             differ in so many numbers that nothing pays

`costs` says which of them is the cheapest for a coalition. A module is exported once and cut once for each set of
tensors found to vary. A route that cannot be run, or that disagrees, is passed over, and the next one says so: wherever
the plain loop gives a number, there is one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import nn

from fedworth.errors import FedworthError
from fedworth.ledger.ledger import Model
from fedworth.oracle.fast.costs import Kind, cheapest_first, loop_batch, prices
from fedworth.oracle.fast.graph import Exported, NotExportable, export, shape_of
from fedworth.oracle.fast.heads import Head, head_of
from fedworth.oracle.fast.layered import layered
from fedworth.oracle.fast.sections import Sections, cut
from fedworth.oracle.fast.selfcheck import (
    N_SAMPLES,
    Disagrees,
    check_head,
    check_loop,
    check_sections,
    three_of,
)
from fedworth.oracle.fast.traits import rounds_to_half, rows_are_alone
from fedworth.oracle.fast.wanted import Part
from fedworth.oracle.oracle import refuse_unfit
from fedworth.task.modules import UtilityModule, copied
from fedworth.task.task import Task
from fedworth.threads import one_torch_thread

KERNEL_BATCH = 256
"""Samples that a thread takes at once to the kernels."""

LOOP_BATCH, LOOP_IMAGES = 512, 64

MOST_BYTES = 64 << 20
"""What a route may keep of a client on a CPU. Beyond, differences, mixtures and checks in float64 take more memory and
time than anything shared saves."""

SEVERAL_INPUTS = "its inputs are several tensors"
OWN_UTILITY = "its utility is a function of your own"
HALF_PRECISION = "half precision rounds each model differently"
CANNOT_BE_CUT = "its graph cannot be run in sections"


@dataclass(frozen=True)
class PlainRoute:
    """The plain loop itself."""

    why: str
    kind: ClassVar = "plain"


@dataclass(frozen=True)
class LoopRoute:
    """The module itself, once a coalition. `images`: four-dimensional tensors are channels-last."""

    why: str
    batch_size: int
    images: bool
    kind: ClassVar = "loop"


@dataclass(frozen=True)
class SectionsRoute:
    """The module's sections: the constants once, a prefix that pays once a client, the rest once a coalition."""

    why: str
    batch_size: int
    images: bool
    sections: Sections
    kind: Literal["prefix", "graph"]


@dataclass(frozen=True)
class KernelRoute:
    """Fused kernels for what follows the prefix."""

    why: str
    batch_size: int
    images: bool
    sections: Sections
    head: Head
    kind: ClassVar[Literal["kernel"]] = "kernel"


Route = PlainRoute | LoopRoute | SectionsRoute | KernelRoute
"""One way to evaluate a module, and why it was taken."""


class Routes:
    """The routes of one task; what was exported, cut and checked is remembered."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module, self._uncopied = _copy_of(task.module)
        self._n_bytes: dict[str, int] = {name: int(tensor.nbytes) for name, tensor in self.module.state_dict().items()}
        self._exported: Exported | str | None = None
        self._cuts: dict[frozenset[str], Sections] = {}
        self._kinds: dict[tuple[frozenset[str], int, bool, bool], tuple[Kind, ...]] = {}
        self._found: dict[tuple[frozenset[str], tuple[Kind, ...]], Route] = {}

    def taken(self) -> list[Route]:
        """The routes taken so far."""
        return list(self._found.values())

    def kinds(self, varying: frozenset[str], n_members: int, *, to_kernel: bool, at_once: bool) -> tuple[Kind, ...]:
        """The ways for a coalition of so many members, the cheapest first; `to_kernel` if the measure allows kernels,
        `at_once` if all samples' prefixes must be in memory together."""
        key = (varying, n_members, to_kernel, at_once)
        if key not in self._kinds:
            self._kinds[key] = self._priced(*key)
        return self._kinds[key]

    def _priced(self, varying: frozenset[str], n_members: int, to_kernel: bool, at_once: bool) -> tuple[Kind, ...]:
        sections = None if self._is_large(varying) else self._cut(varying)
        if not isinstance(sections, Sections):
            sections = None
        n_together = len(self.task.labels) if at_once or sections is None else sections.batch_size
        found = prices(sections, n_members, model_bytes=self._bytes(varying), n_together=n_together)
        if sections is None or not to_kernel or self._head(sections) is None:
            found.pop("kernel", None)
        return cheapest_first(found, MOST_BYTES if self.task.device.type == "cpu" else math.inf)

    def route(self, part: Part, kinds: tuple[Kind, ...]) -> Route:
        """The first of these ways that can be run, for a part's models, which differ in its `varying` tensors.

        Nothing else decides: neither how many clients there are, nor how many coalitions.
        """
        key = (part.varying, kinds)
        if key not in self._found:
            with one_torch_thread(), torch.inference_mode():
                self._found[key] = self._checked(part, self._candidates(part.origin, *key))
        return self._found[key]

    def _cut(self, varying: frozenset[str]) -> Sections | str:
        """The module cut for these tensors, or why it cannot be."""
        if self._exported is None:
            if not isinstance(self.task.inputs, torch.Tensor):
                return SEVERAL_INPUTS
            if isinstance(self.module, UtilityModule):
                return OWN_UTILITY
            if self._uncopied:
                return self._uncopied
            try:
                self._exported = layered(self.module, self.task.inputs) or export(self.module, self.task.inputs)
            except NotExportable as error:
                self._exported = str(error)
        if isinstance(self._exported, str):
            return self._exported
        if varying not in self._cuts:
            self._cuts[varying] = cut(self._exported, varying)
        return self._cuts[varying]

    def _candidates(self, origin: Model, varying: frozenset[str], kinds: tuple[Kind, ...]) -> Iterator[Route]:
        if plain := self._must_be_plain(origin, varying):
            yield PlainRoute(plain)
            return
        is_image = isinstance(self.task.inputs, torch.Tensor) and self.task.inputs.ndim == 4
        images = is_image and any(t.ndim == 4 for t in origin.values())
        sections = self._cut(varying)
        for kind in kinds:
            if isinstance(sections, Sections) and kind in ("kernel", "prefix", "graph"):
                yield from self._cut_routes(kind, sections, images)
            elif kind == "loop":
                why = sections if isinstance(sections, str) else CANNOT_BE_CUT
                yield from _loops(why, images, self._most_together)

    def _cut_routes(self, kind: Kind, sections: Sections, images: bool) -> Iterator[Route]:
        """The route of this kind, if there is one."""
        if kind == "kernel" and (head := self._head(sections)):
            yield KernelRoute(_cut_at(sections), KERNEL_BATCH, images, sections, head)
        elif kind == "prefix":
            yield SectionsRoute(_cut_at(sections), sections.batch_size, images, sections, "prefix")
        elif kind == "graph":
            whole = cut(sections.exported, sections.varying, shares_prefix=False)
            why = "no affine prefix" if sections.prefix is None else "its affine prefix costs less than averaging it"
            yield SectionsRoute(why, whole.batch_size, images, whole, "graph")

    def _is_large(self, varying: frozenset[str]) -> bool:
        return self.task.device.type == "cpu" and self._bytes(varying) > MOST_BYTES

    def _bytes(self, varying: frozenset[str]) -> int:
        return sum(self._n_bytes.get(name, 0) for name in varying)

    def _must_be_plain(self, origin: Model, varying: frozenset[str]) -> str:
        """Why only the plain loop will do, or nothing."""
        if not isinstance(self.task.inputs, torch.Tensor):
            return SEVERAL_INPUTS
        if isinstance(self.module, UtilityModule):
            return OWN_UTILITY
        if self._uncopied:
            return self._uncopied
        if any(t.is_floating_point() and t.dtype not in (torch.float32, torch.float64) for t in origin.values()):
            return HALF_PRECISION
        refuse_unfit(self.task, origin)
        if self._is_large(varying):
            return f"models differ in {self._bytes(varying) >> 20} MB, more than mixing them otherwise would save"
        samples = self.task.inputs[: self._n_checked]
        if rounds_to_half(self.module, origin, varying, samples):
            return HALF_PRECISION
        if not rows_are_alone(self.module, origin, varying, samples):
            return "a sample's logits depend on the batch it is in"
        return ""

    @property
    def _n_checked(self) -> int:
        """How many samples ways are compared on: no more than go through the module together, but two."""
        return max(2, min(N_SAMPLES, self._most_together))

    @cached_property
    def _most_together(self) -> int:
        return loop_batch(self.module, self.task.inputs)

    def _head(self, sections: Sections) -> Head | None:
        tensors = [t for n, t in sections.exported.constants.items() if n in sections.exported.tensor_names]
        is_single = all(t.dtype == torch.float32 for t in tensors if t.is_floating_point())
        on_cpu = self.task.device.type == "cpu" and self.task.inputs.dtype == torch.float32
        return head_of(sections) if is_single and on_cpu else None

    def _checked(self, part: Part, candidates: Iterator[Route]) -> Route:
        """The first candidate that can be run, once it agrees with the plain loop."""
        passed_over = ""
        for route in candidates:
            try:
                self._check(route, part)
                return replace(route, why=route.why + passed_over)
            except FedworthError:  # what the plain loop refuses as well
                raise
            except Disagrees as error:
                passed_over += f"; not {route.kind}, which disagrees ({error})"
            except Exception as error:  # whatever torch raises where a graph cannot be run
                reason = str(error).strip().partition("\n")[0][:120]
                passed_over += f"; not {route.kind}, which fails ({type(error).__name__}: {reason})"
        return PlainRoute("no other way can be run" + passed_over)

    def _check(self, route: Route, part: Part) -> None:
        origin, chosen = part.origin, three_of(part.mixtures.weights)
        clients = [part.clients[k] for k in chosen]
        if isinstance(route, PlainRoute):
            return
        inputs, labels = self.task.inputs[: self._n_checked], self.task.labels[: self._n_checked]
        if isinstance(route, LoopRoute):
            varying = frozenset(origin)
            check_loop(self.module, origin, clients, varying, inputs, images=route.images)
            return
        check_sections(route.sections, self.module, origin, clients, inputs, images=route.images)
        if isinstance(route, KernelRoute):
            weights = part.mixtures.among(chosen)
            check_head(route.sections, route.head, self.module, origin, clients, inputs, labels, weights)


def _copy_of(module: nn.Module) -> tuple[nn.Module, str]:
    """A copy in eval mode; or the module itself, and why it has no copy."""
    try:
        return copied(module).eval(), ""
    except Exception as error:  # whatever a module keeps that nobody can copy: a lock, an open file
        reason = str(error).strip().partition("\n")[0][:120]
        return module, f"it cannot be copied ({type(error).__name__}: {reason})"


def _loops(why: str, images: bool, most: int) -> Iterator[LoopRoute]:
    """The module itself, for `most` samples at once or fewer; without channels-last if it cannot bear it."""
    if images:
        yield LoopRoute(why, min(LOOP_IMAGES, most), True)
    yield LoopRoute(why, min(LOOP_BATCH, most), False)


def _cut_at(sections: Sections) -> str:
    gives = () if sections.prefix is None else sections.prefix.gives
    names = ", ".join(f"{node.name} {shape_of(node)[1:]}" for node in gives)
    n_tensors = len(sections.exported.tensor_names)
    return f"{len(sections.varying)} of {n_tensors} tensors vary, cut at {names}"
