"""Optimizers and schedules as optax transforms."""

from chomp.optim.config import AdamConfig, GrugOptimizerConfig
from chomp.optim.schedule import learning_rate_schedule

__all__ = ["AdamConfig", "GrugOptimizerConfig", "learning_rate_schedule"]
