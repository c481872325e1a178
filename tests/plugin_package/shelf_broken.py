"""A module that cannot be imported."""

raise RuntimeError("its own dependency is missing")
