"""The compiled inner loops of the fast oracle."""
