"""A federation trained here, by federated averaging."""
