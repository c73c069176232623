"""Recording federations into a ledger, live or from files."""
