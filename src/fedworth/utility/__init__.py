"""Measure what coalitions would have achieved: the utility matrix, partly seen."""
