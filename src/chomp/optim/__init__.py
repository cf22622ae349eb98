"""Optimizers and schedules as optax transforms."""

from chomp.optim.config import PARAM_GROUPS, AdamConfig, Group, GrugOptimizerConfig, group_table
from chomp.optim.muon import MuonConfig
from chomp.optim.schedule import LearningRate

__all__ = [
    "PARAM_GROUPS",
    "AdamConfig",
    "Group",
    "GrugOptimizerConfig",
    "LearningRate",
    "MuonConfig",
    "group_table",
]
