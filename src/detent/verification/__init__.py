"""PROOF: simulation, twin and engine compared, and a verdict."""

from __future__ import annotations

from detent.verification.verdict import Accuracy, Cause, Difference, OnCpu, Speed, Verdict
from detent.verification.verify import verify

__all__ = ["Accuracy", "Cause", "Difference", "OnCpu", "Speed", "Verdict", "verify"]
