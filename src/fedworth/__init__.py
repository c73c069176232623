"""fedworth: what each client's data is worth in a federated learning."""
