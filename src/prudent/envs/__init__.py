"""Environments: labelled grids for temporal-logic goals, and confounded ones for imitation.

Importing this package registers the confounded environments with Gymnasium.
"""

from prudent.envs import _registration  # noqa: F401 (registers)
from prudent.envs._confounded import ConfoundedWrapper, EpisodeBatch
from prudent.envs._experts import Expert, ExpertScore, evaluate_expert, load_expert
from prudent.envs._generated import random_mdp, slippery_grid
from prudent.envs._grids import grid
from prudent.envs._locomotion import ConfoundedLocomotion
from prudent.envs._ltl_tasks import frozen_lake, office_world, probabilistic_gate
from prudent.envs._tickets import TicketPricing, TicketPricingBatch, ticket_expert

__all__ = [
    "ConfoundedLocomotion",
    "ConfoundedWrapper",
    "EpisodeBatch",
    "Expert",
    "ExpertScore",
    "TicketPricing",
    "TicketPricingBatch",
    "evaluate_expert",
    "frozen_lake",
    "grid",
    "load_expert",
    "office_world",
    "probabilistic_gate",
    "random_mdp",
    "slippery_grid",
    "ticket_expert",
]
