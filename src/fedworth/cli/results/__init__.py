"""Commands that start from a report: statements, rewards, comparisons."""
