"""Reads calibration and test data from files, and checks it before use."""

from __future__ import annotations

from detent.data.arrays import Inputs, Types
from detent.data.called import called, named_function
from detent.data.folder import Folder
from detent.data.images import Preprocessing

__all__ = ["Folder", "Inputs", "Preprocessing", "Types", "called", "named_function"]
