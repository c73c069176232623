"""What servers make of their clients' models: rules, and the check that a ledger's server followed one."""
