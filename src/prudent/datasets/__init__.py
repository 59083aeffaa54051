"""Designs named after their papers, each with its true function, and loaders for real data."""

from prudent.datasets._demand import demand_error, demand_grid, make_demand
from prudent.datasets._design import Design
from prudent.datasets._proximal import (
    ProximalDesign,
    demand_proximal_error,
    demand_proximal_grid,
    kpv_error,
    linear_bridge,
    make_demand_proximal,
    make_kpv,
    make_linear_proximal,
)
from prudent.datasets._simple import make_curve, make_linear_gaussian
from prudent.datasets._sprites import draw_hearts, make_sprites, sprites_error, sprites_grid

__all__ = [
    "Design",
    "ProximalDesign",
    "demand_error",
    "demand_grid",
    "demand_proximal_error",
    "demand_proximal_grid",
    "draw_hearts",
    "kpv_error",
    "linear_bridge",
    "make_curve",
    "make_demand",
    "make_demand_proximal",
    "make_kpv",
    "make_linear_gaussian",
    "make_linear_proximal",
    "make_sprites",
    "sprites_error",
    "sprites_grid",
]
