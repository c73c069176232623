"""What a route costs, in operations and bytes, from the graph of a module; the cheapest one that fits is taken.

With F the operations of a section for one sample, Z the numbers a prefix gives, V the bytes in which models differ, B
the samples whose prefixes are in memory together, a coalition of m members takes, a sample,

    kernel   RUNNING_COST Z + F_rest                                    operations, and V bytes a client
    prefix   (PRODUCT_COST m + WRITING_COST + MAKING_COST) Z + F_rest              V + 4 B Z
    graph    F_prefix + MAKING_COST Z + F_rest                                     V
    loop     LOOP_COST times the graph                                             V
    plain    PLAIN_COST times the graph                                            0: it keeps no differences

A number that a section makes takes MAKING_COST operations more, since memory and exponentials are slower than products.
That of each client is made once, which is little beside many coalitions. A first convolution of few channels is not
worth sharing (measured: 25 weights an output, 5 to 10 clients, a loss).

The choice is a matter of the module, the test set and the coalition's own size: a utility must not depend on what is
measured with it, nor on the machine. `describe` shows what a route should take, with all clients and coalitions of a
call, by the operations that a core of this machine does in a second; beside it, what it took.
"""

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from fedworth.oracle.fast.mixing import MOST_TOGETHER
from fedworth.oracle.fast.sections import Section, Sections, flops, numbers
from fedworth.oracle.fast.wanted import Part

RUNNING_COST, MAKING_COST = 20.0, 30.0
"""Time of a number in a running sum, and of one that a step of a graph makes, in operations of a large product."""

PRODUCT_COST, WRITING_COST = 10.0, 250.0
"""The same of an averaged number, for each client and for itself; with what makes up for clients' prefixes."""

LOOP_COST, PLAIN_COST = 1.1, 1.2
"""The module's own way takes what folding saves; the plain loop averages in float64."""

LOOP_BYTES = 16 << 20
"""What the largest value of the module's own way may take for a batch: more is slow to come by and fills the memory."""

SIZE = 384
"""Rows and columns of the product that is measured."""

Kind = Literal["kernel", "prefix", "graph", "loop", "plain"]


@dataclass(frozen=True)
class Price:
    """Operations for one sample of one coalition, and bytes that are kept of a client."""

    operations: float
    n_bytes: int


def prices(sections: Sections | None, n_members: int, *, model_bytes: int, n_together: int) -> dict[Kind, Price]:
    """What each route costs a coalition of so many members; without sections, relative to each other."""
    if sections is None:
        return {"loop": Price(LOOP_COST, model_bytes), "plain": Price(PLAIN_COST, 0)}
    size, rest = n_given(sections), _operations(sections.rest)
    whole = rest + _flops(sections.prefix) + MAKING_COST * size
    found: dict[Kind, Price] = {}
    if sections.prefix is not None:
        averaging = PRODUCT_COST * n_members + WRITING_COST + MAKING_COST
        found["kernel"] = Price(rest + RUNNING_COST * size, model_bytes)
        found["prefix"] = Price(rest + averaging * size, model_bytes + 4 * n_together * size)
    found["graph"] = Price(whole, model_bytes)
    found["loop"] = Price(LOOP_COST * whole, model_bytes)
    found["plain"] = Price(PLAIN_COST * whole, 0)
    return found


def cheapest_first(found: dict[Kind, Price], most_bytes: float) -> tuple[Kind, ...]:
    """The cheapest route that fits, then what is left if it cannot be run: those that share nothing, which are in the
    same order for coalitions of every size. So coalitions with the same first route are measured together."""
    fitting: list[Kind] = [kind for kind, price in found.items() if price.n_bytes <= most_bytes]
    first, *others = sorted(fitting, key=lambda kind: found[kind].operations)
    return first, *(kind for kind in others if kind not in ("kernel", "prefix"))


def n_given(sections: Sections) -> int:
    """Z: how many numbers the prefix gives, for one sample."""
    return 0 if sections.prefix is None else sum(numbers(node) for node in sections.prefix.gives)


def _flops(section: Section | None) -> float:
    return 0.0 if section is None else sum(flops(node) for node in section.graph_module.graph.nodes)


def _operations(section: Section | None) -> float:
    """Of a section, for one sample, with what its numbers take."""
    nodes = () if section is None else section.graph_module.graph.nodes
    return _flops(section) + MAKING_COST * sum(numbers(node) for node in nodes if node.op == "call_function")


def loop_batch(module: nn.Module, inputs: torch.Tensor) -> int:
    """How many samples may go through a module together, a power of two."""
    fits = LOOP_BYTES // (4 * max(1, largest_value(module, inputs[:2])))
    return 1 << max(0, fits.bit_length() - 1)


def largest_value(module: nn.Module, samples: torch.Tensor) -> int:
    """How many numbers the largest value has that any part of a module gives, for one sample: tokens times classes."""
    sizes = [1]

    def noted(_: nn.Module, __: Any, given: Any) -> None:
        sizes.extend(t.numel() for t in tree_leaves(given) if isinstance(t, torch.Tensor))

    hooks = [part.register_forward_hook(noted) for part in module.modules()]
    try:
        module(samples)
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes) // len(samples)


@dataclass(frozen=True)
class Cost:
    """Seconds of one core, and megabytes."""

    seconds: float = 0.0
    megabytes: float = 0.0

    def then(self, other: "Cost") -> "Cost":
        """One after the other: seconds add up, memory is used again."""
        return Cost(self.seconds + other.seconds, max(self.megabytes, other.megabytes))

    def __str__(self) -> str:
        return f"{self.seconds:.2g} s and {self.megabytes:.0f} MB"


class Spent:
    """What routes should have taken so far, and what they took."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, Cost, Cost]] = {}  # by the route itself: coalitions, estimate, taken
        self._uneven: Counter[int] = Counter()

    @contextmanager
    def noted(self, route: object, n_coalitions: int, expected: Cost) -> Iterator[None]:
        """Note what the context takes, and what it should. Memory is what the process's peak grows by: nothing, if it
        needed as much before."""
        n_before, expected_before, taken_before = self._of.get(id(route), (0, Cost(), Cost()))
        start, peak = time.process_time(), _peak_megabytes()
        yield
        taken = Cost(time.process_time() - start, _peak_megabytes() - peak)
        self._of[id(route)] = n_before + n_coalitions, expected_before.then(expected), taken_before.then(taken)

    def passed_on(self, route: object, n_coalitions: int) -> None:
        """Note that the next route has measured so many of them again."""
        self._uneven[id(route)] += n_coalitions

    def said(self, route: object) -> str:
        """The end of a sentence about a route."""
        if id(route) not in self._of:
            return ""
        n, expected, taken = self._of[id(route)]
        should = f"{expected} expected, " if expected.seconds else ""
        n_uneven = self._uneven[id(route)]
        again = f"; {n_uneven} of them again by the next, as numbers are too uneven for whole units" if n_uneven else ""
        return f"; {n} coalitions: {should}{taken} taken{again}"


@cache
def speed() -> float:
    """Operations that a core does in a second, in a large product of matrices."""
    one = torch.rand(SIZE, SIZE)
    taken = []
    for _ in range(4):  # the first is for the pages it touches
        start = time.perf_counter()
        torch.mm(one, one)
        taken.append(time.perf_counter() - start)
    return 2 * SIZE**3 / min(taken)


def estimate(kind: Kind, sections: Sections, part: Part, *, n_samples: int, batch_size: int) -> Cost:
    """What the coalitions of a part should take on this machine: each of them, and every client's prefix."""
    n_models, n_coalitions, size = len(part.clients) + 1, len(part.places), n_given(sections)
    of_model = sum(tensor.nbytes for name, tensor in part.origin.items() if name in part.varying)
    priced = prices(sections, 0, model_bytes=of_model, n_together=batch_size)
    averaging = PRODUCT_COST * float(np.sum(part.sizes)) * size if kind == "prefix" else 0.0
    of_clients = 0.0 if kind == "graph" else n_models * _flops(sections.prefix)
    operations = of_clients + n_coalitions * priced[kind].operations + averaging
    n_bytes = (n_models + MOST_TOGETHER) * (of_model + 4 * batch_size * size)
    return Cost(n_samples * operations / speed(), n_bytes / 2**20)


def _peak_megabytes() -> float:
    """The most memory that the process has had so far; macOS counts it in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
