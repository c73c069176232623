"""A federation trained elsewhere, recorded as it happens."""
