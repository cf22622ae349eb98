"""Mixture of experts: which experts a token goes to, how it gets there, how they stay even.

`reference.py` is the specification. Nothing is dropped where one device has all experts, nor
outside of training.
"""

from chomp.kernels.moe.experts import ExpertWeights, Routed, routed_experts
from chomp.kernels.moe.routing import (
    RouterSums,
    Routing,
    balance_loss,
    balanced_bias,
    route,
    router_logits,
    router_metrics,
    router_z_loss,
)

__all__ = [
    "ExpertWeights",
    "Routed",
    "RouterSums",
    "Routing",
    "balance_loss",
    "balanced_bias",
    "route",
    "routed_experts",
    "router_logits",
    "router_metrics",
    "router_z_loss",
]
