"""`python -m assay.app.cli`."""

from assay.app.cli import main


main()
