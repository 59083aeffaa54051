"""Environments: labelled grids for learning from temporal-logic goals."""

from prudent.envs._generated import random_mdp, slippery_grid
from prudent.envs._grids import grid
from prudent.envs._ltl_tasks import frozen_lake, office_world, probabilistic_gate

__all__ = ["frozen_lake", "grid", "office_world", "probabilistic_gate", "random_mdp", "slippery_grid"]
