"""Reports: one self-contained page about any result or a sweep, and what such pages show."""
