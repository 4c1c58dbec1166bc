"""Rules that combine the updates of a merge, gates that check updates, and the types for your own."""

from oddlot.core.support.errors import Rejection
from oddlot.model.arrival import Arrival
from oddlot.model.combine import Combine, Gate, Section
from oddlot.model.evidence_gate import EvidenceRange
from oddlot.model.robust_combine import Krum, Median, TrimmedMean

__all__ = [
    "Arrival",
    "Combine",
    "EvidenceRange",
    "Gate",
    "Krum",
    "Median",
    "Rejection",
    "Section",
    "TrimmedMean",
]
