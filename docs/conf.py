"""Settings of the documentation site, which `make docs` builds. `make_pages.py` gathers and generates its sources.

Sphinx with MyST was chosen over MkDocs Material because it is maintained: Sphinx, myst-parser and pydata-sphinx-theme
had releases in 2026, while MkDocs 1 had its last in August 2024 and Material's maintenance ends in November 2026.
"""

import re
from pathlib import Path

from pydantic import BaseModel

project = "pretrainkit"
author = "The pretrainkit developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
default_role = "code"
smartquotes = False
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_inherit_docstrings = False
html_theme = "pydata_sphinx_theme"
html_title = "pretrainkit"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}  # otherwise every page logs a warning about its mode
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}

# Not the star of a list; `tok_rgb@224` is no address of mail.
MARKUP = re.compile(r"(?<!^)\*|\*(?! )|\||(?<=\w)_(?!\w)|(?<=\w)@(?=\w)", re.MULTILINE)


def as_markup(app, kind, name, obj, options, lines):
    """Docstrings are plain text with `code`: keep Sphinx from taking a `*` or `name_` outside of code for markup."""
    text = "\n".join(lines)
    parts = re.split(r"(``?[^`]+``?)", text)
    parts[1::2] = [f"``{part.strip('`')}``" for part in parts[1::2]]
    parts[::2] = [MARKUP.sub(r"\\\g<0>", part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")
    if kind in ("attribute", "property"):
        lines.insert(0, "\u200b")  # else napoleon takes the words before a colon for a type


def readable(app, kind, name, obj, options, signature, return_annotation):
    """Leave out the signature of a config: its fields are listed below it. In others, defaults without a form in Python
    become `...`, because Sphinx shows a signature that it cannot parse as it is."""
    if kind == "class" and issubclass(obj, BaseModel):
        return "", None
    return signature and re.sub(r"<(?:[^<>]|<[^<>]*>)+>", "...", signature), return_annotation


def without_sidebar(app, config):
    """Pages of the top level have no others beside them, and need no list of them."""
    home = (Path(app.srcdir) / "index.md").read_text("utf-8")
    top = re.findall(r"<([\w-]+)\.md>", home)
    config.html_sidebars = {page: [] for page in ("index", *top) if not page.endswith("-overview")}


def setup(app):
    app.connect("config-inited", without_sidebar)
    app.connect("autodoc-process-signature", readable)
    app.connect("autodoc-process-docstring", as_markup, priority=1)
