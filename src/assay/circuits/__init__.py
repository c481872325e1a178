"""Circuits and edge scores: selection, set operations, files."""

from assay.circuits.certification import certify as certify, selection_probability as selection_probability
from assay.circuits.certified import CertifiedCircuit as CertifiedCircuit, load_certified as load_certified
from assay.circuits.circuit import Circuit as Circuit
from assay.circuits.eap_ig_files import (
    GraphFile as GraphFile,
    read_eap_ig as read_eap_ig,
    write_eap_ig as write_eap_ig,
)
from assay.circuits.exchange import (
    SubmissionEntry as SubmissionEntry,
    load_submission as load_submission,
    save_submission as save_submission,
)
from assay.circuits.export import (
    ExportedCircuit as ExportedCircuit,
    attribution_graph as attribution_graph,
    export_circuit as export_circuit,
)
from assay.circuits.files import write_atomically as write_atomically
from assay.circuits.heads import (
    BAND_ORDINALS as BAND_ORDINALS,
    HeadCircuit as HeadCircuit,
    Role as Role,
    band_ordinal as band_ordinal,
    load_head_circuit as load_head_circuit,
    published_head_circuits as published_head_circuits,
)
from assay.circuits.loading import load_circuit as load_circuit
from assay.circuits.paths import prune as prune
from assay.circuits.published import (
    published_circuit as published_circuit,
    published_circuits as published_circuits,
)
from assay.circuits.roles import NodeRoles as NodeRoles, load_roles as load_roles
from assay.circuits.scores import EdgeScores as EdgeScores, load_scores as load_scores
from assay.circuits.spans import Spans as Spans
