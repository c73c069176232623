"""How the test set is divided: cells of one group and one random block of samples each.

Utilities are measured on each cell, and their sum over all cells is the paper's utility. Sums over blocks give the
values by group; the spread of the sums over groups gives the test set's part of the uncertainty. With v_b the values on
block b, w_b the block's share of the test set and B blocks,

    r_b = v_b − w_b Σ_b v_b,        Σ_test = B/(B − 1) Σ_b r_b r_bᵀ

A block is drawn at random from the whole test set, without regard to groups: most of the variance between samples lies
between classes, and blocks that are alike in their classes would hide it.

If the shares of the groups in a population are known, values are for that population (post-stratification): each cell
counts by its group's share of the population over its share of the test set. Which samples of a group were drawn is
then the only chance left. With w the shares of a group's cells in the group,

    r_gb = v_gb − w_gb v_g,        Σ_test = Σ_g (1 − Σ_b w_gb²)⁻¹ Σ_b r_gb r_gbᵀ

For a measure that is not a mean over samples (AUC, R², concordance) the sums over a block are its jackknife parts
(`oracle.jackknife`); such a measure has no parts by group.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedworth.arrays import Floats, Indices, stream
from fedworth.errors import UsageError, unknown_name
from fedworth.names import GroupShares
from fedworth.task.losses import Criterion
from fedworth.task.modules import UtilityModule
from fedworth.task.task import Task

N_BLOCKS, FEWEST_BLOCKS, MOST_CELLS = 32, 12, 640
"""Blocks of samples; fewer where many groups would make too many cells."""

MOST_CLASSES = 50
"""Test sets with more classes have no groups by default."""

MOST_BYTES = 1 << 30
"""Memory that utilities by class may take; with more there are no groups by default."""

BATCH = 128

ONE_SAMPLE = "the test set has one sample, so nothing can be told about other data"
OWN_UTILITY = "a utility of your own gives one number for all test samples, so nothing can be told about other data"
ONE_CLASS = "all test samples are of one class, so nothing can be told about data with other classes"
UNDEFINED = "{name} is not defined without some of the test samples, so it cannot be told how it varies with them"
OWN_ORACLE = "the oracle that was given measures all test samples together"
NO_BLOCKS = "the utilities are not given by block of test samples"


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells that utilities are measured on; each belongs to one group and to one random block of test samples."""

    groups: tuple[str, ...]  # their names; empty if there are none
    group_of: Indices  # (n_cells,), 0 everywhere if there are no groups
    block_of: Indices  # (n_cells,)
    shares: Floats  # (n_cells,): of the test set; they add up to 1
    n_samples: int | None  # in the test set, if that is known
    by: str = ""  # what the groups are: class, site, …
    population: Floats | None = None  # (n_groups,): the groups' shares of the population that values are for

    @property
    def weights(self) -> Floats | None:
        """(n_cells,): what a cell counts, if values are for a population with other shares than the test set."""
        return None if self.population is None else (self.population / self.group_shares)[self.group_of]

    @property
    def n_blocks(self) -> int:
        """The number of random blocks."""
        return int(self.block_of.max()) + 1

    @property
    def group_shares(self) -> Floats:
        """(n_groups,): each group's part of the test set."""
        return np.bincount(self.group_of, self.shares, minlength=len(self.groups)).astype(np.float64)

    def by_group(self, values: Floats) -> Floats:
        """(n, n_groups): values by cell, (n, n_cells), summed over the cells of each group."""
        return np.asarray(values @ (self.group_of[:, None] == np.arange(len(self.groups))))

    def by_block(self, values: Floats) -> Floats:
        """(n, n_blocks): values by cell, (n, n_cells), summed over the cells of each block."""
        return np.asarray(values @ (self.block_of[:, None] == np.arange(self.n_blocks)))

    def residuals(self, values: Floats) -> Floats:
        """(n, n_blocks): √(B/(B − 1)) r_b of values by cell, (n, n_cells); their products add up to the covariance.

        With known shares of groups (n, n_cells), within the groups.
        """
        if self.population is not None:
            within = self.shares / self.group_shares[self.group_of]  # w_gb
            known = np.maximum(1 - np.bincount(self.group_of, within**2), 1e-9)  # 0 for a group with one sample
            expected = self.by_group(values)[:, self.group_of] * within
            return np.asarray((values - expected) / np.sqrt(known)[self.group_of])
        expected = values.sum(axis=1, keepdims=True) * self.by_block(self.shares[None])
        return np.asarray((self.by_block(values) - expected) * np.sqrt(self.n_blocks / (self.n_blocks - 1)))

    def without_groups(self) -> "Cells":
        """The random blocks as cells."""
        return _random_blocks(self.by_block(self.shares[None])[0], self.n_samples)


@dataclass(frozen=True)
class Undivided:
    """A test set whose part of the uncertainty is not known, and why."""

    reason: str


def divide(
    task: Task,
    criterion: Criterion,
    by: str | None = None,
    shares: GroupShares | None = None,
    *,
    n_coalitions: int = 0,
) -> tuple[Task, Cells | Undivided]:
    """The task with its test samples in cells, and the cells; the same division for the same test set and groups.

    `by` names the grouping, and `shares` are those of its groups in the population that values are for. Unless they are
    asked for, classes are groups only if the utilities of `n_coalitions` by cell fit into memory.
    """
    most_classes = min(MOST_CLASSES, MOST_BYTES // (8 * N_BLOCKS * max(1, n_coalitions)))
    divided, cells = _divide(task, criterion, _grouping(task, by, most_classes if shares is None else len(task.labels)))
    if shares is None:
        return divided, cells
    if isinstance(cells, Undivided) or not cells.groups:
        why = (
            cells.reason if isinstance(cells, Undivided) else "the test samples have no groups, or the measure no parts"
        )
        raise UsageError(f"--group-shares: {why}; leave the option out")
    return divided, replace(cells, population=_population(shares, cells))


def _grouping(task: Task, by: str | None, most_classes: int) -> tuple[str, tuple[str, ...]]:
    """The name of a grouping, and the group of each test sample; one group if there is no grouping."""
    known = dict(task.groups or {})
    if task.classes is not None:
        known.setdefault("class", task.classes)
    if by is not None:
        if by not in known:
            raise unknown_name("grouping of test samples", by, known)
        return by, known[by]
    name = next(iter(known), "")
    if not name or (task.groups is None and len(set(known[name])) > most_classes):
        return "", ("",) * len(task.labels)
    return name, known[name]


def _population(shares: GroupShares, cells: Cells) -> Floats:
    """(n_groups,): the groups' shares of a population; they add up to 1."""
    if shares == "equal":
        return np.full(len(cells.groups), 1 / len(cells.groups))
    missing, unknown = sorted(set(cells.groups) - {*shares}), sorted(set(shares) - {*cells.groups})
    if missing or unknown:
        found = f"no share of {', '.join(missing[:5])}" if missing else f"no test sample is in {', '.join(unknown[:5])}"
        raise UsageError(
            f"--group-shares: {found}; expected a share for each group of {cells.by}: {', '.join(cells.groups)}"
        )
    found_shares = np.array([float(shares[name]) for name in cells.groups])
    if not (np.isfinite(found_shares).all() and (found_shares >= 0).all() and found_shares.sum() > 0):
        raise UsageError("--group-shares: a share is negative or not finite; expected numbers from 0 on")
    return np.asarray(found_shares / found_shares.sum())


def _divide(task: Task, criterion: Criterion, grouping: tuple[str, tuple[str, ...]]) -> tuple[Task, Cells | Undivided]:
    n, classes = len(task.labels), task.classes
    by, groups = grouping
    if isinstance(task.module, UtilityModule):
        return task, Undivided(OWN_UTILITY)
    if n == 1:
        return task, Undivided(ONE_SAMPLE)
    if classes is not None and len(set(classes)) == 1:
        return task, Undivided(ONE_CLASS)
    outputs = _outputs(task) if criterion.is_whole else None
    if outputs is not None and _scores(criterion, outputs, task.labels).ndim == 0:
        groups = ("",) * n  # no mean over samples
    names = sorted(set(groups), key=_in_order)
    n_blocks = min(n, N_BLOCKS, max(FEWEST_BLOCKS, MOST_CELLS // len(names)))
    blocks = stream(0, "blocks of test samples").permutation(n) % n_blocks  # of equal sizes, give or take one sample
    place = {name: k for k, name in enumerate(names)}
    keys, of_samples = np.unique([place[name] * n_blocks for name in groups] + blocks, return_inverse=True)
    if outputs is not None and not _is_defined(criterion, outputs, task.labels, of_samples):
        return task, Undivided(UNDEFINED.format(name=criterion.name))
    counts = [criterion.counted(task.labels[torch.from_numpy(of_samples == cell)]) for cell in range(len(keys))]
    cells = Cells(
        groups=tuple(names) if len(names) > 1 else (),
        group_of=keys // n_blocks,
        block_of=keys % n_blocks,
        shares=np.array(counts) / sum(counts),
        n_samples=n,
        by=by,
    )
    return replace(task, blocks=of_samples.astype(np.int64)), cells


def cells_of(task: Task) -> Cells | Undivided:
    """The cells of a task that has blocks already: each block is a random part of the test set."""
    if task.blocks is None or task.n_blocks == 1:
        return Undivided(OWN_ORACLE)
    return _random_blocks(np.bincount(task.blocks, minlength=task.n_blocks) / len(task.labels), len(task.labels))


def cells_of_blocks(n_blocks: int) -> Cells | Undivided:
    """The cells of given utilities: each block is a random part of the test set, all of one size."""
    return Undivided(NO_BLOCKS) if n_blocks == 1 else _random_blocks(np.full(n_blocks, 1 / n_blocks), None)


def _random_blocks(shares: Floats, n_samples: int | None) -> Cells:
    return Cells((), np.zeros(len(shares), dtype=np.int64), np.arange(len(shares)), shares, n_samples)


def _outputs(task: Task) -> torch.Tensor:
    """The module's own outputs, with the weights that it has."""
    with torch.inference_mode():
        size = min(BATCH, task.batch_size)
        starts = range(0, len(task.labels), size)
        return torch.cat([task.outputs(task.state, slice(start, start + size)) for start in starts])


def _scores(criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What a criterion gives; NaN where it fails, as functions of users do on samples that they did not expect."""
    try:
        return criterion.of(outputs, labels)
    except Exception:
        return torch.tensor(torch.nan)


def _is_defined(criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor, of_samples: Indices) -> bool:
    """Whether a score is defined without any one cell of samples; a score of samples always is."""
    kept = (torch.from_numpy(of_samples != cell) for cell in range(int(of_samples.max()) + 1))
    if _scores(criterion, outputs, labels).ndim:
        return True
    return all(bool(torch.isfinite(_scores(criterion, outputs[some], labels[some]))) for some in kept)


def _in_order(name: str) -> tuple[bool, float, str]:
    """Numbers in their order, before names."""
    return (False, float(name), name) if name.isdecimal() else (True, 0.0, name)
