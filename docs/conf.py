"""Settings of the documentation build: `make docs`."""

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parent))

import assay


project = "assay"
author = "The assay authors"
copyright = "The assay authors"
version = release = assay.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "_choices",
    "_commands",
    "_notebooks",
    "_reference",
]
exclude_patterns = ["_build", "README.md"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "smartquotes"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_admonition_for_examples = False

html_theme = "furo"
html_title = f"assay {release}"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"
