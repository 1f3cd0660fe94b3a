"""Settings of Sphinx, which builds the pages of this folder: bash scripts/docs.sh."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "extensions"))

from keras_transformer import __version__

project = "keras_transformer"
author = "The keras_transformer developers"
copyright = author
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_help",
    "public_names",
]
exclude_patterns = ["results/data"]
default_role = "py:obj"  # of `backticks` in docstrings

# Markdown: ::: fences, definition lists, and anchors of headings that links may name.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings are in Google's style; types stand in the signatures.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_default_options = {"show-inheritance": True}
napoleon_numpy_docstring = False
add_module_names = False
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 120

# Nothing comes from the network: furo brings its style and scripts, and uses the system's fonts.
html_theme = "furo"
html_title = f"{project} {release}"
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
