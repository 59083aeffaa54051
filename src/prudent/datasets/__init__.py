"""Designs named after their papers, each with its true function, and loaders for real data."""

from prudent.datasets._demand import demand_error, demand_grid, make_demand
from prudent.datasets._design import Design
from prudent.datasets._simple import make_curve, make_linear_gaussian

__all__ = ["Design", "demand_error", "demand_grid", "make_curve", "make_demand", "make_linear_gaussian"]
