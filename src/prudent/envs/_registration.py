"""Gymnasium ids of the confounded environments. MuJoCo itself is imported when one is made."""

import gymnasium

from prudent.envs._locomotion import EPISODE_STEPS, ROBOTS

for _robot in ROBOTS.values():
    gymnasium.register(
        _robot.env_id,
        entry_point="prudent.envs._locomotion:ConfoundedLocomotion",
        kwargs={"robot": _robot.name},
        max_episode_steps=EPISODE_STEPS,
    )
for _version in (0, 1):
    gymnasium.register(
        f"TicketPricing-v{_version}",
        entry_point="prudent.envs._tickets:TicketPricing",
        vector_entry_point="prudent.envs._tickets:TicketPricingBatch",
        kwargs={"closed_loop": _version == 1},
        max_episode_steps=EPISODE_STEPS,
    )
