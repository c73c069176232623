"""The ledger: the record that a federation leaves on disk."""
