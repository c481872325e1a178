"""Reports: pictures and one self-contained page, made from stored results only."""

from assay.report.adversarial import save_histogram
from assay.report.calibration import calibration_figure
from assay.report.calibration_words import overview as calibration_overview
from assay.report.comparison import compare_document
from assay.report.html import save_report
from assay.report.layout import document_graph
from assay.report.overview import overview_document, sweep_document
from assay.report.tail_words import tail_verdict
from assay.report.tracking import log_to_mlflow
from assay.report.words import verdict


__all__ = [
    "calibration_figure",
    "calibration_overview",
    "compare_document",
    "document_graph",
    "log_to_mlflow",
    "overview_document",
    "save_histogram",
    "save_report",
    "sweep_document",
    "tail_verdict",
    "verdict",
]
