"""The site of a results store; needs the extra `serve`."""
