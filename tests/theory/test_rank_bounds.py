"""How low the rank of the utility matrix is: propositions, and measured bounds."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedworth.errors import UsageError, ValuationError
from fedworth.names import ScheduleName
from fedworth.simulation.settings import Schedule
from fedworth.theory.rank_bounds import (
    path_length,
    rank_bound_lipschitz,
    rank_bound_strongly_convex,
    rank_lower,
    rank_upper_cover,
    rank_upper_svd,
)

REGULARISATION = 0.1


class Run(NamedTuple):
    """A federation of one full-batch step a round, and constants of its loss on the ball it stayed in."""

    models: NDArray[np.float64]  # (n_rounds, n_parameters), at the start of each round
    utilities: NDArray[np.float64]  # (n_rounds, 2^N)
    etas: list[float]
    lipschitz: float
    smoothness: float


def loss(w: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    return float(np.logaddexp(0, -y * (x @ w)).mean() + REGULARISATION / 2 * w @ w)


def gradient(w: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    chances = 1 / (1 + np.exp(y * (x @ w)))
    return np.asarray(-(x.T @ (y * chances)) / len(y) + REGULARISATION * w)


def logistic_run(n_rounds: int, form: ScheduleName) -> Run:
    """Regularised logistic regression of four unlike clients; each later round averages two of them."""
    rng = np.random.default_rng(7)
    n_clients, n_features = 4, 3
    xs = 3 * rng.normal(size=(n_clients + 1, 30, n_features))
    ys = np.sign(np.einsum("kni,ki->kn", xs, rng.normal(size=(n_clients + 1, n_features))))
    reach = float(np.linalg.norm(xs, axis=2).max())
    smoothness = reach**2 / 4 + REGULARISATION  # the logistic loss has second derivative at most ¼
    eta = Schedule(form, convexity=REGULARISATION, smoothness=smoothness).at
    w, models, rows, radius = np.ones(n_features), [], [], 0.0
    for t in range(n_rounds):
        local = np.array([w - eta(t) * gradient(w, xs[k], ys[k]) for k in range(n_clients)])
        members = [[k for k in range(n_clients) if c >> k & 1] for c in range(1, 2**n_clients)]
        coalition_models = [w] + [local[who].mean(axis=0) for who in members]
        rows.append([loss(w, xs[-1], ys[-1]) - loss(v, xs[-1], ys[-1]) for v in coalition_models])
        models.append(w)
        radius = max(radius, *(float(np.linalg.norm(v)) for v in coalition_models))
        w = local[rng.choice(n_clients, 2, replace=False) if t else slice(None)].mean(axis=0)
    lipschitz = reach + REGULARISATION * radius  # |gradient| on the ball of that radius
    return Run(np.array(models), np.array(rows), [eta(t) for t in range(n_rounds)], lipschitz, smoothness)


@pytest.mark.parametrize("form", ["proposition-2", "proposition-2-li"])
def test_proposition_1_holds_on_a_real_run(form):
    run = logistic_run(40, form)
    travelled = (2 + run.etas[0] * run.smoothness) * run.lipschitz * path_length(run.models)
    promised = travelled + (run.etas[0] - run.etas[-1]) * run.lipschitz**2
    assert np.abs(np.diff(run.utilities, axis=0)).max(axis=1).sum() <= promised
    for share in (0.9, 0.5, 0.1, 0.03, 0.001):  # from one ball for all rows to the cap of 2^N
        epsilon = share * promised
        bound = rank_bound_lipschitz(
            path_length=path_length(run.models),
            lipschitz=run.lipschitz,
            smoothness=run.smoothness,
            eta_first=run.etas[0],
            eta_last=run.etas[-1],
            epsilon=epsilon,
            n_rounds=40,
            n_clients=4,
        )
        assert bound == min(16, math.ceil(promised / epsilon))
        assert rank_upper_cover(run.utilities, epsilon) <= bound


@pytest.mark.parametrize("form", ["proposition-2", "proposition-2-li"])
def test_proposition_2_needs_its_factor_of_the_lipschitz_constant(form):
    run = logistic_run(40, form)
    printed = 2 / REGULARISATION * math.log(40)
    assert path_length(run.models) <= run.lipschitz * printed
    steps = np.linalg.norm(np.diff(run.models, axis=0), axis=1)
    assert (steps <= run.lipschitz * np.array(run.etas[:-1])).all()
    if form == "proposition-2":
        assert (steps > run.etas[:-1]).any()  # the proof's ‖w^{t+1} − w^t‖ = η^t


def test_proposition_2_is_proposition_1_with_the_path_replaced():
    bound = rank_bound_strongly_convex(mu=2.0, lipschitz=1.5, smoothness=4.0, epsilon=3.0, n_rounds=100, n_clients=10)
    gamma = 8 * 2 / 4
    first, last = 2 / (2 * (gamma + 1)), 2 / (2 * (gamma + 100))
    first_term = 2 * (2 + first * 4) * 1.5 * 1.5 * math.log(100) / (2 * 3)  # printed with one 1.5
    assert bound == math.ceil(first_term + (first - last) * 1.5**2 / 3) == 10


def test_proposition_2_grows_with_the_logarithm_of_the_rounds():
    bounds = [
        rank_bound_strongly_convex(mu=1.0, lipschitz=1.0, smoothness=1.0, epsilon=0.01, n_rounds=n, n_clients=30)
        for n in (10**4, 10**6, 10**8)
    ]
    assert bounds[2] - bounds[1] == pytest.approx(bounds[1] - bounds[0], abs=2)


def test_bounds_stay_between_one_and_the_sides_of_the_matrix():
    still = {"lipschitz": 1.0, "smoothness": 1.0, "eta_first": 0.1, "eta_last": 0.1, "epsilon": 0.1}
    assert rank_bound_lipschitz(path_length=0.0, n_rounds=5, n_clients=3, **still) == 1
    assert rank_bound_lipschitz(path_length=1e9, n_rounds=5, n_clients=3, **still) == 5
    assert rank_bound_lipschitz(path_length=1e9, n_rounds=50, n_clients=3, **still) == 8
    assert rank_bound_strongly_convex(mu=1.0, lipschitz=1.0, smoothness=1.0, epsilon=0.1, n_rounds=1, n_clients=3) == 1


def test_the_first_round_of_a_schedule_is_t_equal_to_one():
    printed = Schedule("proposition-2", convexity=0.5, smoothness=8.0).at  # γ = max{½, 1}
    li = Schedule("proposition-2-li", convexity=0.5, smoothness=8.0).at  # γ = 128
    assert printed(0) == pytest.approx(2 / (0.5 * 2))
    assert li(0) == pytest.approx(2 / (0.5 * 129))
    assert li(0) < 1 / (4 * 8.0) < 2 / 8.0 < printed(0)
    assert [printed(t) for t in range(3)] == sorted((printed(t) for t in range(3)), reverse=True)


def test_a_printed_schedule_of_a_well_conditioned_loss_has_the_larger_gamma():
    assert Schedule("proposition-2", convexity=1.0, smoothness=2.0).at(0) == pytest.approx(2 / (1.0 * (4 + 1)))


@given(
    n_rounds=st.integers(1, 12),
    n_clients=st.integers(1, 5),
    rank=st.integers(0, 3),
    epsilon=st.floats(1e-6, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_lower_bound_never_passes_either_upper_bound(n_rounds, n_clients, rank, epsilon, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(n_rounds, rank)) @ rng.normal(size=(rank, 2**n_clients))
    lower = rank_lower(matrix, epsilon)
    assert lower <= rank_upper_svd(matrix, epsilon) <= min(rank, *matrix.shape)
    assert lower <= rank_upper_cover(matrix, epsilon) <= min(matrix.shape)


@given(seed=st.integers(0, 2**32 - 1), epsilon=st.floats(0.05, 3))
def test_no_covering_ball_is_wider_than_the_path_of_rows_pays_for(seed, epsilon):
    rows = np.random.default_rng(seed).normal(size=(12, 8)).cumsum(axis=0)
    travelled = np.abs(np.diff(rows, axis=0)).max(axis=1).sum()
    assert rank_upper_cover(rows, epsilon) <= math.ceil(travelled / epsilon)


def test_measured_ranks_of_small_matrices_are_the_obvious_ones():
    matrix = np.diag([4.0, 2.0, 1.0, 0.5])
    assert [rank_upper_svd(matrix, e) for e in (5.0, 4.0, 2.0, 1.0, 0.1)] == [0, 0, 1, 2, 4]
    assert rank_lower(matrix, 0.1) == 4  # ε√16 = 0.4
    assert rank_lower(matrix, 0.5) == 1  # ε√16 = 2, which 2 does not pass
    steps = np.array([[0.0, 0.0], [1.0, 0.5], [2.0, 1.0], [3.0, 0.0], [9.0, 0.0]])
    assert rank_upper_cover(steps[:, :1] * np.ones(8), 1.0) == 3  # {0, 1, 2}, {3}, {9}
    assert rank_upper_cover(steps, 0.1) == 2  # five balls, but two columns


def test_rounding_noise_is_no_rank():
    rng = np.random.default_rng(0)
    matrix = np.outer(rng.normal(size=20), rng.normal(size=64))
    assert rank_lower(matrix, 1e-300) == 1


def test_measuring_a_rank_leaves_the_matrix_as_it_was():
    matrix = np.random.default_rng(1).normal(size=(4, 8))
    before = matrix.copy()
    rank_upper_svd(matrix, 0.5)
    rank_upper_cover(matrix, 0.5)
    assert np.array_equal(matrix, before)


def test_the_path_is_the_sum_of_its_steps():
    assert path_length(np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])) == pytest.approx(6.0)
    assert path_length(np.zeros((1, 2))) == 0


def test_impossible_settings_are_refused():
    good = {"path_length": 1.0, "lipschitz": 1.0, "smoothness": 1.0, "eta_first": 0.2, "eta_last": 0.1}
    for wrong in ({"path_length": -1.0}, {"lipschitz": 0.0}, {"eta_last": 0.3}, {"smoothness": math.inf}):
        with pytest.raises(UsageError):
            rank_bound_lipschitz(**(good | wrong), epsilon=0.1, n_rounds=5, n_clients=3)
    with pytest.raises(UsageError, match="at least one of each"):
        rank_bound_lipschitz(**good, epsilon=0.1, n_rounds=0, n_clients=3)
    with pytest.raises(UsageError, match="more convex than it is smooth"):
        rank_bound_strongly_convex(mu=2.0, lipschitz=1.0, smoothness=1.0, epsilon=0.1, n_rounds=5, n_clients=3)
    for measure in (rank_lower, rank_upper_svd, rank_upper_cover):
        with pytest.raises(UsageError, match="epsilon"):
            measure(np.eye(2), 0.0)
        with pytest.raises(ValuationError, match="two dimensions"):
            measure(np.ones(4), 0.1)
        with pytest.raises(ValuationError, match="finite"):
            measure(np.array([[1.0, np.nan]]), 0.1)
