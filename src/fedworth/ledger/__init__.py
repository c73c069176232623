"""What a federation leaves on disk: its rounds, whole, chained and checked."""
