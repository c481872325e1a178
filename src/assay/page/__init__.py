"""Pages: blocks that say what is shown, and renderers that know no result."""
