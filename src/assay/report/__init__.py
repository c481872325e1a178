"""Reports: pictures and one self-contained page, made from stored results only."""

from assay.report.html import save_report
from assay.report.layout import document_graph
from assay.report.words import verdict


__all__ = ["document_graph", "save_report", "verdict"]
