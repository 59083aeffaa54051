"""Designs named after their papers, each with its true function, and loaders for real data."""

from prudent.datasets._demand import demand_error, demand_grid, make_demand
from prudent.datasets._demand_images import demand_images_error, demand_images_grid, make_demand_images
from prudent.datasets._design import Design, SplitDesign
from prudent.datasets._pricing import best_price, make_pricing, pricing_error, pricing_grid
from prudent.datasets._proximal import (
    ProximalDesign,
    demand_proximal_error,
    demand_proximal_grid,
    kpv_error,
    make_demand_proximal,
    make_kpv,
    make_linear_proximal,
)
from prudent.datasets._semisynthetic import ihdp_error, make_ihdp, make_pm_cmr, pm_cmr_error
from prudent.datasets._simple import make_curve, make_linear_gaussian
from prudent.datasets._sprites import draw_hearts, make_sprites, sprites_error, sprites_grid

__all__ = [
    "Design",
    "ProximalDesign",
    "SplitDesign",
    "best_price",
    "demand_error",
    "demand_grid",
    "demand_images_error",
    "demand_images_grid",
    "demand_proximal_error",
    "demand_proximal_grid",
    "draw_hearts",
    "ihdp_error",
    "kpv_error",
    "make_curve",
    "make_demand",
    "make_demand_images",
    "make_demand_proximal",
    "make_ihdp",
    "make_kpv",
    "make_linear_gaussian",
    "make_linear_proximal",
    "make_pm_cmr",
    "make_pricing",
    "make_sprites",
    "pm_cmr_error",
    "pricing_error",
    "pricing_grid",
    "sprites_error",
    "sprites_grid",
]
