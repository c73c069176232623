"""Old name of `fedworth.games.permutations`; goes with the old pipeline."""

from fedworth.games.permutations import default_permutations as default_permutations
from fedworth.games.permutations import draw_permutations as draw_permutations
