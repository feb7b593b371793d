"""The demo: a small trained network and its images, which ship with the package, and the rows of the demo's table."""

from __future__ import annotations

from detent.demo.data import Images, images, normalized, trained
from detent.demo.network import DemoNet
from detent.demo.rows import JOBS, Job, Row, run

__all__ = ["JOBS", "DemoNet", "Images", "Job", "Row", "images", "normalized", "run", "trained"]
