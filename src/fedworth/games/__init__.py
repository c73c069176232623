"""One round as a game among its clients, and its Shapley value from few evaluations.

The door of this room: nobody outside imports from deeper in it.
"""

from fedworth.games.estimate import Estimate as Estimate
from fedworth.games.old_sampled import default_budget as default_budget
from fedworth.games.old_sampled import sampled_values as sampled_values
from fedworth.games.recorded import recorded_values as recorded_values
from fedworth.games.round_game import RoundGame as RoundGame
from fedworth.games.rounds import estimate_rounds as estimate_rounds
from fedworth.games.strata import strata_values as strata_values
