"""`python -m assay`: the command `assay`."""

from assay.cli import main


main()
