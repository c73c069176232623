import numpy as np

from fedworth.valuation.rivals.counted import CountedGame


def test_each_coalition_is_measured_once_and_the_empty_one_never():
    asked = []

    def measure(coalitions):
        asked.append(coalitions.copy())
        return coalitions.sum(axis=1).astype(float)

    game = CountedGame(3, measure)
    rows = np.array([[0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 1]], dtype=bool)
    assert game(rows).tolist() == [0, 1, 1, 3]
    assert game.n_evaluations == 2
    assert game.whole == 3
    assert game.n_evaluations == 2
    assert game.all().tolist() == [0, 1, 1, 2, 1, 2, 2, 3]
    assert game.n_evaluations == 7
    assert sum(len(rows) for rows in asked) == 7
