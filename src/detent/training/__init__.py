"""Training: loops, checkpoints, several processes, config files."""

from detent.training.batches import Batches, Samples
from detent.training.bn_reestimation import reestimate_batch_norms
from detent.training.ema import Ema
from detent.training.epoch_loop import EpochLoop
from detent.training.log import Log
from detent.training.loops import LSQEpochLoop, PTQLoop, QATEpochLoop
from detent.training.objective import Objective
from detent.training.parameter_groups import parameter_groups
from detent.training.phases import Phases
from detent.training.precision import Precision
from detent.training.processes import Processes, joined_processes
from detent.training.random_state import seed_everything
from detent.training.run import Progress, Run
from detent.training.schedules import Schedule
from detent.training.validation import validate

__all__ = [
    "Batches",
    "Ema",
    "EpochLoop",
    "LSQEpochLoop",
    "Log",
    "Objective",
    "PTQLoop",
    "Phases",
    "Precision",
    "Processes",
    "Progress",
    "QATEpochLoop",
    "Run",
    "Samples",
    "Schedule",
    "joined_processes",
    "parameter_groups",
    "reestimate_batch_norms",
    "seed_everything",
    "validate",
]
