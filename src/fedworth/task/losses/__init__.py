"""Losses and measures: what a model's outputs are judged by."""
