"""Fidelity: how near the values are to the truth, and whether they know it."""
