"""For the reference of names: what stands under "Example:" in a docstring is shown as Python; Griffe loads this."""

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:    .*\n?|\n)+)", re.MULTILINE)


def fenced(text: str) -> str:
    """The docstring with its example as a block of Python."""
    return EXAMPLE.sub(lambda found: "Example:\n" + textwrap.indent(_block(found.group(1)), "    "), text)


def _block(code: str) -> str:
    return f"```python\n{textwrap.dedent(code).strip()}\n```\n"


class Fenced(griffe.Extension):  # type: ignore[misc]  # Griffe is not in the environment that types are checked in
    """Changes docstrings as they are read."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called by Griffe for everything that it reads."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
