"""Claims: predictions about heads, registered before measuring, and the evidence they gather."""

from assay.analyses.claims.claim import (
    Claim as Claim,
    ClaimedRole as ClaimedRole,
    Control as Control,
    Prediction as Prediction,
    Rival as Rival,
)
from assay.analyses.claims.evidence import TIERS as TIERS, Evidence as Evidence
from assay.analyses.claims.outcomes import Outcome as Outcome
from assay.analyses.claims.reading import load_claim as load_claim, parse_claim as parse_claim
from assay.analyses.claims.registration import (
    Registration as Registration,
    read_registration as read_registration,
    register_claim as register_claim,
)
from assay.analyses.claims.running import ClaimResult as ClaimResult, run_claim as run_claim
