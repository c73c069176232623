"""Running the trials of a study and keeping their rows."""
