"""Which cells of the utility matrix to measure, before any is measured."""
