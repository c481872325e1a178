"""Claims: predictions about heads, registered before measuring, and the evidence they gather."""

from assay.analyses.claims.claim import Claim, ClaimedRole, Control, Prediction, Rival
from assay.analyses.claims.evidence import TIERS, Evidence
from assay.analyses.claims.outcomes import Outcome
from assay.analyses.claims.reading import load_claim, parse_claim
from assay.analyses.claims.registration import Registration, read_registration, register_claim
from assay.analyses.claims.running import ClaimResult, run_claim


__all__ = [
    "TIERS",
    "Claim",
    "ClaimResult",
    "ClaimedRole",
    "Control",
    "Evidence",
    "Outcome",
    "Prediction",
    "Registration",
    "Rival",
    "load_claim",
    "parse_claim",
    "read_registration",
    "register_claim",
    "run_claim",
]
