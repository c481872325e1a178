"""The site of a results store."""
