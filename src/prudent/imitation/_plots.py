"""A picture of one roll-out."""

from typing import TYPE_CHECKING, Any

import numpy as np

from prudent._checks import check_count
from prudent.cmr._base import check_seed
from prudent.errors import DataError
from prudent.imitation._evaluate import run_steps, start_policy
from prudent.imitation._rollout import EVALUATION, Expert, batches, episode_seeds, find_expert, make_env

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_rollout(
    policies: dict[str, Any],
    env: Any,
    *,
    steps: int = 100,
    seed: int = 0,
    column: int = 0,
    expert: Expert | None = None,
) -> "Figure":
    """One episode of each policy under the same noise: its action beside the expert's at the same states, and reward.

    ``policies`` are named; ``column`` says which action is drawn.
    """
    check_seed(seed)
    check_count("steps", steps, 1)
    check_count("column", column, 0)
    if not isinstance(policies, dict) or not policies:
        raise DataError(
            f"policies must be a dict of one or more names and policies, got {policies!r}. Give {{'name': policy}}."
        )
    env = make_env(env)
    width = int(np.prod(env.action_space.shape or ()))
    if column >= width:
        raise DataError(f"column must be one of the actions 0 to {width - 1}, got {column}.")
    judge = find_expert(env, expert)
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(
        len(policies) + 1, 1, figsize=(8, 1.9 * (len(policies) + 1)), sharex=True, layout="constrained"
    )
    for ax, (name, policy) in zip(axes, policies.items(), strict=False):
        batch, seeds = next(batches(env, 1)), episode_seeds(seed, EVALUATION, 1)
        run = list(run_steps(batch, judge, start_policy(policy), seeds, steps))
        ax.plot([step.wanted[0, column] for step in run], color="black", linewidth=1, label="expert, at these states")
        ax.plot([step.clipped[0, column] for step in run], color="tab:blue", linewidth=1.2, label="policy")
        ax.set_ylabel(f"action {column}")
        ax.set_title(name, loc="left", fontsize=10)
        axes[-1].plot(np.cumsum([step.reward[0] for step in run]), linewidth=1.2, label=name)
    # Above the axes: the curves fill them.
    axes[0].legend(fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)
    axes[-1].set(xlabel="step", ylabel="total reward")
    axes[-1].legend(fontsize=8)
    return fig
