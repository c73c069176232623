"""Old name of `fedworth.games.shapley.interaction_values`; goes with the old pipeline."""

from fedworth.games.shapley import interaction_values as shapley_interactions

__all__ = ["shapley_interactions"]
