"""Reports: pictures and one self-contained page, made from stored results only."""

from assay.report.html import save_report


__all__ = ["save_report"]
