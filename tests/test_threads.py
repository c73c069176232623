"""Linear algebra and torch on one thread, and on as many as before afterwards; work that is divided, in order."""

import threading

import threadpoolctl
import torch

from fedworth.threads import in_order, one_blas_thread, one_torch_thread


def n_threads():
    return {found["num_threads"] for found in threadpoolctl.threadpool_info() if found["user_api"] == "blas"}


def test_as_long_as_it_lasts_linear_algebra_has_one_thread():
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        with one_blas_thread():
            assert n_threads() == {1}
        assert n_threads() == {2}


def test_torch_has_the_callers_threads_again_after_its_one():
    before = torch.get_num_threads()
    with one_torch_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_results_come_in_the_order_of_their_items():
    assert in_order(lambda x: x * x, range(20), 3) == [x * x for x in range(20)]


def test_threads_that_overlap_all_get_back_what_was_set_before():
    before = torch.get_num_threads()
    inside, left, found = threading.Barrier(2), threading.Event(), []

    def first():
        with one_torch_thread():
            inside.wait()
        left.set()
        found.append(torch.get_num_threads())

    def second():
        with one_torch_thread():
            inside.wait()
            left.wait()
        found.append(torch.get_num_threads())

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*found, torch.get_num_threads()] == [before] * 3
