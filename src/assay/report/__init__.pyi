"""What `assay.report` promises, each name with its module."""

from assay.analyses.worst_case.page_words import tail_verdict as tail_verdict
from assay.pipeline.audit_page import verdict as verdict
from assay.report.circuit_page import circuit_document as circuit_document
from assay.report.save import save_report as save_report
from assay.report.sweep import sweep_frame as sweep_frame
from assay.report.sweep import sweep_page as sweep_page
