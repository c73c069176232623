"""The former names of caveats, for modules that still use them."""

from fedworth.completion.caveat import Caveat as Doubt
from fedworth.completion.caveat import heard_once as heard_once

__all__ = ["Doubt", "heard_once"]
