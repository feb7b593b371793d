"""Deploys an artifact for another backend without calibrating again."""

from detent.retargeting.retarget import restored, retargeted

__all__ = ["restored", "retargeted"]
