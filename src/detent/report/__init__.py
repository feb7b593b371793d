"""Pages to look at: one artifact, several side by side, and what other viewers and model hubs read."""

from __future__ import annotations

from detent.report.annotated import annotated_model
from detent.report.card import model_card
from detent.report.collect import BATCHES, collect
from detent.report.comparison import comparison_of
from detent.report.facts import Facts
from detent.report.model_explorer import node_data
from detent.report.page import page_of, write_page

__all__ = [
    "BATCHES",
    "Facts",
    "annotated_model",
    "collect",
    "comparison_of",
    "model_card",
    "node_data",
    "page_of",
    "write_page",
]
