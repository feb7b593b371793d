"""The interfaces that targets implement, and what their files share."""

from __future__ import annotations

from detent.targets.base.deployment import Deployment
from detent.targets.base.engine import Defect, Engine, Placement
from detent.targets.base.format import Format, TensorFacts, Written
from detent.targets.base.target import Target

__all__ = ["Defect", "Deployment", "Engine", "Format", "Placement", "Target", "TensorFacts", "Written"]
