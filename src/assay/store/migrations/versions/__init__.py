"""The revisions, from the first schema on."""
