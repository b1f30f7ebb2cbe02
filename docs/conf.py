"""Configuration of the manual."""

from __future__ import annotations

import re

import attrs
from sphinx.application import Sphinx

from trioserve import __version__

project = "trioserve"
author = "The trioserve developers"
copyright = "The trioserve developers"  # noqa: A001  # the name is Sphinx's
release = version = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "sphinx_rtd_theme"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
nitpicky = False
autodoc_default_options = {"undoc-members": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_custom_sections = [
    ("Raises on entering", "params_style"),
    ("Raises on leaving", "params_style"),
    ("Raises on leaving the block", "params_style"),
]
default_role = "code"
exclude_patterns = ["_build"]


def prepare_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Make a docstring what napoleon understands."""
    # its headings have no parentheses; and the numbers of the fan-out contract are for those who read the code
    text = re.sub(r"(?m)^(\s*Raises) \((on .*)\):$", r"\1 \2:", "\n".join(lines))
    lines[:] = re.sub(r" \(FAN-\d+\)", "", text).split("\n")
    if what in ("attribute", "property"):
        # It would take "threads; None: its own choice" for a type and a text, but looks at the first line only, which
        # becomes an empty comment.
        lines[:0] = ["..", ""]


def tell_defaults(
    app: Sphinx, what: str, name: str, thing: object, options: object, signature: str | None, returns: str | None
) -> tuple[str, None] | None:
    """The signature of an attrs class from its fields; none for a class that is not made by callers."""
    if what != "class":
        return None
    if not (isinstance(thing, type) and attrs.has(thing)):
        return "", None
    fields = attrs.fields(thing)
    star = ["*"] if fields[0].kw_only else []
    return f"({', '.join(star + [_with_default(field) for field in fields])})", None


def _with_default(field: attrs.Attribute[object]) -> str:
    default = field.default
    if default is attrs.NOTHING:
        return field.name
    if callable(default):
        return f"{field.name}={default.__name__}"
    factory = getattr(default, "factory", None)
    return f"{field.name}={repr(default) if factory is None else factory.__name__ + '()'}"


def setup(app: Sphinx) -> None:
    # before napoleon's own handler, whose priority is 500
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)
    app.connect("autodoc-process-signature", tell_defaults)
