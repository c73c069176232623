"""Blocks are summed in their own order, whoever finishes first."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import UsageError
from fedworth.oracle.fast.threads import meanwhile, sum_over_blocks


@given(st.integers(1, 30), st.integers(2, 4))
def test_the_sum_has_the_same_bytes_for_every_number_of_threads(n_blocks, n_threads):
    blocks = np.random.default_rng(n_blocks).normal(size=(n_blocks, 5)) ** 9
    one = sum_over_blocks(lambda block: blocks[block], n_blocks)
    assert sum_over_blocks(lambda block: blocks[block], n_blocks, n_threads).tobytes() == one.tobytes()


def test_a_block_finished_early_waits_for_its_turn():
    last_is_done = threading.Event()

    def of_block(block):
        if block == 0:
            assert last_is_done.wait(timeout=30)
        if block == 2:
            last_is_done.set()
        return np.array([1e16, 1.0, -1e16])[[block]]

    in_order = (1e16 + 1.0) - 1e16  # 0, where any other order gives 1
    assert sum_over_blocks(of_block, 3, n_threads=2)[0] == in_order


@pytest.mark.parametrize("n_threads", [1, 2])
def test_blocks_are_left_as_they_were(n_threads):
    blocks = np.ones((3, 2))
    assert sum_over_blocks(lambda block: blocks[block], 3, n_threads).tolist() == [3, 3]
    assert blocks.tolist() == [[1, 1]] * 3


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_failure_in_a_block_is_raised_and_ends_the_work(n_threads):
    taken = []

    def of_block(block):
        taken.append(block)
        raise ArithmeticError(f"block {block}")

    with pytest.raises(ArithmeticError, match="block"):
        sum_over_blocks(of_block, 1000, n_threads)
    assert len(taken) <= n_threads


@pytest.mark.parametrize(("n_blocks", "n_threads"), [(0, 1), (1, 0)])
def test_there_must_be_a_block_and_a_thread(n_blocks, n_threads):
    with pytest.raises(UsageError, match="expected 1 or more"):
        sum_over_blocks(lambda _: np.zeros(1), n_blocks, n_threads)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_what_is_done_meanwhile_is_done_once_and_its_error_is_raised_where_it_is_wanted(n_threads):
    done = []

    def work():
        done.append(threading.current_thread())
        return len(done)

    later = meanwhile(work, n_threads)
    assert [later(), later()] == [1, 1]
    assert (done == [threading.current_thread()]) == (n_threads == 1)

    def fails():
        raise UsageError("no")

    failing = meanwhile(fails, n_threads)
    with pytest.raises(UsageError, match="no"):
        failing()


def test_a_thread_that_is_put_aside_holds_up_nobody():
    goes_on, caller = threading.Event(), threading.get_ident()

    def of_block(block):
        if threading.get_ident() != caller:
            assert goes_on.wait(timeout=30)
        return np.array([2.0**block])

    try:
        assert sum_over_blocks(of_block, 8, n_threads=2).tolist() == [255]
    finally:
        goes_on.set()
