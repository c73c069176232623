"""The paper's studies, built only from the public API."""
