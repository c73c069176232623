"""Templates to HTML: everything escaped, and a policy that lets only our own script and style run.

default-src 'none'                  nothing is fetched, from anywhere
script-src, style-src 'sha256-…'    only these very texts run, even if a name should escape escaping
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from fedworth.colours import DARK, LIGHT

_FOLDER = files("fedworth.report.page") / "templates"


def render(template: str, view: dict[str, Any], *, script: str = "") -> str:
    """The page that a template makes of what it is given, with our style and, by its file name, a script."""
    style, code = _style(), _text(script) if script else ""
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_source(style)}'",
            f"script-src '{_source(code)}'" if code else "script-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return _environment().get_template(template).render(view | {"style": style, "script": code, "policy": policy})


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """Colours, then rules. Dark twice: by the system, and by the reader's choice; print is always light."""
    light, dark = (";".join(f"--{role}:{colour}" for role, colour in theme.items()) for theme in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}\n{_text('style.css')}"
    )


def _source(text: str) -> str:
    """What the policy calls this very text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
