"""Pages: blocks that say what is shown, and renderers for HTML, a terminal and notebooks."""
