"""`python -m assay`: the command `assay`."""

from assay.app.cli import main


main()
