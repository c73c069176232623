"""One round as a game among its clients, and its Shapley value from few evaluations.

The door of this room: nobody outside imports from deeper in it.
"""

from fedworth.utility.games.estimate import Estimate as Estimate
from fedworth.utility.games.recorded import recorded_values as recorded_values
from fedworth.utility.games.round_game import RoundGame as RoundGame
from fedworth.utility.games.rounds import estimate_rounds as estimate_rounds
from fedworth.utility.games.sampled import default_budget as default_budget
from fedworth.utility.games.sampled import sampled_values as sampled_values
from fedworth.utility.games.strata import strata_values as strata_values
