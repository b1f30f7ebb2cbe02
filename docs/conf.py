"""Configuration of the manual."""

from __future__ import annotations

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
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"
default_role = "code"
exclude_patterns = ["_build"]
