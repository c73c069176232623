"""What fedworth survives, counted: each module is one kind of attack, and `python -m tools.torture` makes them all."""
