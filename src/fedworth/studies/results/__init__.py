"""From rows to numbers, verdicts, pictures and the page."""
