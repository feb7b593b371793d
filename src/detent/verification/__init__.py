"""Compares simulation, twin and engine, and returns a Verdict."""

from __future__ import annotations

from detent.verification.in_child import verify_folder, verify_in_child
from detent.verification.verdict import Accuracy, Cause, Difference, OnCpu, Speed, Verdict
from detent.verification.verify import verify

__all__ = ["Accuracy", "Cause", "Difference", "OnCpu", "Speed", "Verdict", "verify", "verify_folder", "verify_in_child"]
