"""What a route should take, in seconds of one core and in megabytes, from the operations and numbers of a graph.

With F the operations of a section for one sample, Z the numbers a prefix gives, n samples, K models, C coalitions:

    kernel   n (K F_prefix + C (RUNNING_COST Z + F_rest))                     sums run along a trie
    prefix   n (K F_prefix + C (F_rest + (PRODUCT_COST m + WRITING_COST) Z))   m members of a coalition, on average
    graph    n C F_rest

operations. A core does as many a second as in a large product of matrices, measured once a process. A number that is
made takes MAKING_COST of them, since memory and exponentials are slower than products. Memory: the differences of all
models, the mixtures of a few, and a batch of everybody's prefixes.

`describe` shows the estimate beside what it took. Which route is taken follows from the same costs a coalition
(`sections.largest_sharing`, `routes.MOST_BYTES`), but of the module alone: a utility must not depend on what is
measured with it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from fedworth.utility.fast.mixing import MOST_TOGETHER
from fedworth.utility.fast.routes import KernelRoute, LoopRoute, Route, SectionsRoute
from fedworth.utility.fast.sections import PRODUCT_COST, WRITING_COST, Section, flops, numbers
from fedworth.utility.fast.wanted import Part

RUNNING_COST, MAKING_COST = 20.0, 30.0
"""Time of a number in a running sum, and of one that a step of a graph makes, in operations of a large product."""

SIZE = 384
"""Rows and columns of the product that is measured."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one core, and megabytes."""

    seconds: float = 0.0
    megabytes: float = 0.0

    def then(self, other: "Cost") -> "Cost":
        """One after the other: seconds add up, memory is used again."""
        return Cost(self.seconds + other.seconds, max(self.megabytes, other.megabytes))


class Spent:
    """What routes should have taken so far, and what they took."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, Cost, float]] = {}  # by the route itself: coalitions, estimate, seconds taken

    @contextmanager
    def noted(self, route: LoopRoute | SectionsRoute | KernelRoute, part: Part, n_samples: int) -> Iterator[None]:
        """Note what the context takes, and what it should."""
        n_before, expected, taken = self._of.get(id(route), (0, Cost(), 0.0))
        if not isinstance(route, LoopRoute):
            expected = expected.then(estimate(route, part, n_samples))
        start = time.process_time()
        yield
        self._of[id(route)] = n_before + len(part.places), expected, taken + time.process_time() - start

    def said(self, route: Route) -> str:
        """The end of a sentence about a route."""
        if id(route) not in self._of:
            return ""
        n, expected, taken = self._of[id(route)]
        should = f"{expected.seconds:.2g} s and {expected.megabytes:.0f} MB expected, " if expected.seconds else ""
        return f"; {n} coalitions: {should}{taken:.2g} s taken"


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


def estimate(route: SectionsRoute | KernelRoute, part: Part, n_samples: int) -> Cost:
    """What the coalitions of a part should take."""
    sections, n_models, n_coalitions = route.sections, len(part.clients) + 1, len(part.places)
    n_given = sum(numbers(node) for node in sections.prefix.gives) if sections.prefix is not None else 0
    of_members = PRODUCT_COST * float(np.mean(part.sizes)) + WRITING_COST
    averaging = (RUNNING_COST if isinstance(route, KernelRoute) else of_members) * n_given
    operations = n_models * _operations(sections.prefix) + n_coalitions * (_operations(sections.rest) + averaging)
    of_model = sum(tensor.nbytes for name, tensor in part.origin.items() if name in part.varying)
    n_bytes = (n_models + MOST_TOGETHER) * (of_model + 4 * route.batch_size * n_given)
    return Cost(n_samples * operations / speed(), n_bytes / 2**20)


def _operations(section: Section | None) -> float:
    """Of a section, for one sample."""
    nodes = () if section is None else section.graph_module.graph.nodes
    return sum(flops(node) + MAKING_COST * numbers(node) for node in nodes if node.op == "call_function")
