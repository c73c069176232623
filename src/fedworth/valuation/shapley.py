"""Old name of `fedworth.games.shapley`; goes with the old pipeline."""

from fedworth.games.shapley import n_members as n_members
from fedworth.games.shapley import semivalues as semivalues
from fedworth.games.shapley import shapley_values as shapley_values
