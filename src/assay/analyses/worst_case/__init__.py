"""Worst-case evaluation: on which inputs a circuit departs from its model, how far, what a sample proves."""

from assay.analyses.worst_case.ascent import (
    Ascent as Ascent,
    Climbs as Climbs,
    grammar_ascent as grammar_ascent,
)
from assay.analyses.worst_case.attack import run_sample as run_sample, worst_case as worst_case
from assay.analyses.worst_case.explain import (
    ExplainedEdge as ExplainedEdge,
    Explanation as Explanation,
    explain as explain,
)
from assay.analyses.worst_case.inputs import (
    DistinctInputs as DistinctInputs,
    PairSample as PairSample,
    PromptSet as PromptSet,
)
from assay.analyses.worst_case.matrix import (
    FoundPair as FoundPair,
    MatrixSearch as MatrixSearch,
    matrix_search as matrix_search,
)
from assay.analyses.worst_case.outside import (
    FillerRow as FillerRow,
    Outside as Outside,
    outside_grammar as outside_grammar,
    read_words as read_words,
    unused_words as unused_words,
)
from assay.analyses.worst_case.pair_divergence import DIVERGENCES as DIVERGENCES
from assay.analyses.worst_case.repair import Repair as Repair, repair as repair
from assay.analyses.worst_case.result import WorstCase as WorstCase
from assay.analyses.worst_case.sampling import PROTOCOLS as PROTOCOLS, sample_pairs as sample_pairs
from assay.analyses.worst_case.search import SearchResult as SearchResult, search_worst as search_worst
