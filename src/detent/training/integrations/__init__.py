"""INTEGRATIONS: callbacks for the trainers of other libraries, which are imported when a callback is created."""

from detent.training.integrations.hugging_face import hugging_face_callback
from detent.training.integrations.lightning import lightning_callback

__all__ = ["hugging_face_callback", "lightning_callback"]
