"""All stages in one go."""
