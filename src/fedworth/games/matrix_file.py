"""Utility matrices on disk: what `observe` writes, and what anyone with coalition values can bring.

Both are plain `.npz` without pickle, and `load_utilities` reads either:

    brought    utilities     float64 (n_rounds, n_coalitions), NaN where unseen
               coalitions    bool    (n_coalitions, n_clients)
               participants  bool    (n_rounds, n_clients)
               permutations  int     (n_permutations, n_clients), optional: for the Monte Carlo estimate
               clients       str     (n_clients,), optional
    written    the same, but for the seen cells alone, since a large matrix is nearly all unseen:
               cell_rounds, cell_coalitions int (n_seen,) and utilities float64 (n_seen,);
               round_permutations_<t> int, for FedSV's Monte Carlo estimate, or
               round_designs_<t> bool (n_coalitions, n_clients), for its stratified one;
               games_values, games_variances float64 (n_rounds, n_clients), games_covariance float64 (n_clients,
               n_clients), games_evaluations int: each round's values, where they were estimated at once;
               trail str, optional: which ledger and task the utilities were measured on (see `fedworth.trail`);
               notes str, optional: what a reader of any value must know, as that a budget ran out
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UtilityError
from fedworth.games.matrix import UtilityMatrix, matrix_from_cells
from fedworth.games.round_values import round_values_arrays, round_values_in
from fedworth.storage import Place, read_npz, write_npz
from fedworth.trail import trail_array, trail_in

Arrays = dict[str, NDArray[Any]]


def save_utilities(matrix: UtilityMatrix, path: Place) -> None:
    """Write a utility matrix, whole or not at all.

    Args:
        matrix: What to write.
        path: An `.npz` file.

    Example:
        fedworth.save_utilities(utilities, "utilities.npz")
    """
    arrays: Arrays = {
        "clients": np.array(matrix.clients, dtype=np.str_),
        "participants": matrix.participants,
        "coalitions": matrix.coalitions,
        "cell_rounds": matrix.round_indices,
        "cell_coalitions": matrix.coalition_indices,
        "utilities": matrix.utilities,
        "is_truth": np.array(matrix.is_truth),
    }
    if matrix.permutations is not None:
        arrays["permutations"] = matrix.permutations
    for round_index, permutations in enumerate(matrix.round_permutations or ()):
        arrays[f"round_permutations_{round_index}"] = permutations
    for round_index, design in enumerate(matrix.round_designs or ()):
        arrays[f"round_designs_{round_index}"] = design
    for name, texts in (("notes", matrix.notes), ("left_out", matrix.left_out)):
        if texts:
            arrays[name] = np.array(texts, dtype=np.str_)
    write_npz(path, {**arrays, **round_values_arrays(matrix.round_values), **trail_array(matrix.trail)})


def load_utilities(path: Place, *, is_truth: bool = False) -> UtilityMatrix:
    """The utility matrix at `path`.

    Args:
        path: What `observe` wrote, or an `.npz` of your own.
        is_truth: Allow cells of absent clients in a file of your own too.

    Returns:
        The utilities, checked.

    Example:
        utilities = fedworth.load_utilities("mine.npz")
    """
    arrays = read_npz(path)
    is_written = "cell_rounds" in arrays
    expected = ("utilities", "coalitions", "participants", *(["cell_coalitions"] if is_written else []))
    for name in expected:
        if name not in arrays:
            raise UtilityError(f"{path}: no array {name!r}; found {sorted(arrays)}")
    try:
        return _written(arrays) if is_written else _brought(arrays, is_truth)
    except UtilityError as error:
        raise UtilityError(f"{path}: {error}") from None


def _written(arrays: Arrays) -> UtilityMatrix:
    return UtilityMatrix(
        _clients(arrays),
        _flags(arrays, "participants"),
        _flags(arrays, "coalitions"),
        arrays["cell_rounds"],
        arrays["cell_coalitions"],
        arrays["utilities"],
        _permutations(arrays, "permutations"),
        _round_permutations(arrays),
        bool(np.all(arrays.get("is_truth", False))),
        tuple(str(note) for note in arrays.get("notes", ())),
        _round_designs(arrays),
        trail_in(arrays),
        tuple(str(name) for name in arrays.get("left_out", ())),
        round_values_in(arrays),
    )


def _brought(arrays: Arrays, is_truth: bool) -> UtilityMatrix:
    """A dense file as a matrix; the empty coalition is known even where the file leaves it out."""
    participants, coalitions = _flags(arrays, "participants"), _flags(arrays, "coalitions")
    utilities = arrays["utilities"]
    expected = (len(participants), len(coalitions))
    if utilities.dtype != np.float64 or utilities.shape != expected:
        found = f"{utilities.dtype} of shape {utilities.shape}"
        raise UtilityError(f"utilities are {found}, expected float64 of shape {expected}")
    if len(participants) == 0 or participants.shape[1] != coalitions.shape[1]:
        found = f"participants of shape {participants.shape} and coalitions of shape {coalitions.shape}"
        raise UtilityError(f"{found}, expected one round or more, and as many clients in both")
    if np.isinf(utilities).any():
        t, c = np.argwhere(np.isinf(utilities))[0]
        raise UtilityError(f"utilities[{t}, {c}] is {utilities[t, c]}, expected a finite number, or NaN where unseen")
    _refuse_nonzero_empty(utilities, coalitions)
    rows = []
    for row in utilities:
        seen = ~np.isnan(row)
        rows.append((coalitions[seen], row[seen]))
    if len(np.unique(np.packbits(coalitions, axis=1), axis=0)) != len(coalitions):
        raise UtilityError("coalitions: two rows are the same set of clients; give each once")
    return matrix_from_cells(
        _clients(arrays),
        participants,
        rows,
        permutations=_permutations(arrays, "permutations"),
        round_permutations=_round_permutations(arrays),
        round_designs=_round_designs(arrays),
        is_truth=is_truth,
    )


def _refuse_nonzero_empty(utilities: NDArray[np.float64], coalitions: NDArray[np.bool_]) -> None:
    empty = np.flatnonzero(~coalitions.any(axis=1))
    found = utilities[:, empty][np.nan_to_num(utilities[:, empty]) != 0]
    if len(found):
        raise UtilityError(f"utility of the empty coalition is {found[0]}, expected 0; subtract it from its round")


def _flags(arrays: Arrays, name: str) -> NDArray[np.bool_]:
    array = arrays[name]
    if array.dtype != np.bool_ or array.ndim != 2:
        found = f"{array.dtype} of shape {array.shape}"
        raise UtilityError(f"{name} is {found}, expected bool with a column a client")
    return array


def _clients(arrays: Arrays) -> tuple[str, ...]:
    n_clients = arrays["participants"].shape[1]
    if "clients" not in arrays:
        return tuple(str(k) for k in range(n_clients))
    found = arrays["clients"]
    if found.shape != (n_clients,):
        raise UtilityError(f"clients are of shape {found.shape}, expected a name for each of {n_clients}")
    return tuple(str(name) for name in found)


def _permutations(arrays: Arrays, name: str) -> NDArray[np.int64] | None:
    if name not in arrays:
        return None
    if arrays[name].dtype.kind not in "iu":
        raise UtilityError(f"{name} are {arrays[name].dtype}, expected whole client numbers")
    return arrays[name].astype(np.int64)


def _round_permutations(arrays: Arrays) -> tuple[NDArray[np.int64], ...] | None:
    found = [_permutations(arrays, f"round_permutations_{t}") for t in range(len(arrays["participants"]))]
    permutations = tuple(of_round for of_round in found if of_round is not None)
    return permutations or None


def _round_designs(arrays: Arrays) -> tuple[NDArray[np.bool_], ...] | None:
    given = [f"round_designs_{t}" for t in range(len(arrays["participants"]))]
    return tuple(_flags(arrays, name) for name in given if name in arrays) or None
