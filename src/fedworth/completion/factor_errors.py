"""Errors of the completion by factors, from alternatives that fit the seen cells about as well."""

from fedworth.completion.alternatives import with_alternatives as with_errors

__all__ = ["with_errors"]
