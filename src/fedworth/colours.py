"""Colours by role, light and dark, for the page, notebooks and plots.

Blue helps and orange harms, because colour-blind readers confuse green and red. No meaning depends on a colour alone. A
test checks the contrast of each role on both backgrounds (WCAG 2).
"""

LIGHT = {
    "page": "#ffffff",
    "panel": "#f5f7f9",
    "ink": "#17202a",
    "soft": "#52606d",
    "rule": "#d5dce3",
    "edge": "#7b8794",
    "link": "#0b5394",
    "plus": "#2166ac",
    "minus": "#b5431a",
    "grey": "#b6c0ca",
    "good": "#1b6b3a",
    "care": "#855300",
    "bad": "#a3241c",
}
DARK = {
    "page": "#11161c",
    "panel": "#1a2129",
    "ink": "#e9edf2",
    "soft": "#a9b4c0",
    "rule": "#34404c",
    "edge": "#7d8a98",
    "link": "#8cc4ff",
    "plus": "#64a9f0",
    "minus": "#f08a5a",
    "grey": "#4d5965",
    "good": "#63c98c",
    "care": "#e3b04b",
    "bad": "#ff8f85",
}
