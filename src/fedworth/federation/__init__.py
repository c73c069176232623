"""Train a federation, or listen to one, and write its ledger."""
