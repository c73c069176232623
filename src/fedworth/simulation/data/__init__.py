"""Data sets by name, and what they are read from."""
