"""From cells to what each client is worth, with uncertainty."""
