"""``prudent experts``: train and judge the experts of the confounded robots."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from prudent.cli._models import Json
from prudent.cli._tables import show
from prudent.errors import DataError

app = typer.Typer(help="Experts for the confounded MuJoCo robots.", no_args_is_help=True)


@app.command()
def train(
    robot: Annotated[str, typer.Argument(help="half-cheetah, hopper or ant.")],
    out: Annotated[Path, typer.Option(help="Folder for the expert, its learning curve and the checkpoint.")],
    steps: Annotated[
        int | None, typer.Option(help="Environment steps, in whole blocks; the shipped expert's by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random choice.")] = 1000,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Train an expert by soft actor-critic: minutes to an hour on one core."""
    if steps is not None and steps < 1:
        raise DataError(f"--steps must be positive, got {steps}.")
    _check_seed(seed)
    from prudent.envs._recipes import train_expert

    expert = train_expert(robot, out, steps=steps, seed=seed, resume=resume)
    done = expert.record["steps"]
    if steps is not None and done != steps and not as_json:
        print(f"training runs in blocks: {done} steps in place of {steps}")
    _show_scores(f"{robot}, {done} steps", expert.record["scores"], as_json)
    if not as_json:
        print(f"saved in {out}/ with curve.csv and curve.png")


@app.command()
def evaluate(
    expert: Annotated[str, typer.Argument(help="half-cheetah, hopper or ant; or the folder of a trained expert.")],
    episodes: Annotated[int, typer.Option(help="Episodes of 500 steps.")] = 10,
    noise_horizon: Annotated[int, typer.Option(help="Steps k over which the hidden noise is correlated.")] = 1,
    seed: Annotated[int, typer.Option(help="Decides every random choice.")] = 0,
    as_json: Json = False,
) -> None:
    """Reward, speed tracking and falls of an expert, with clean and with noised actions."""
    if episodes < 1:
        raise DataError(f"--episodes must be positive, got {episodes}.")
    _check_seed(seed)
    from prudent.envs import evaluate_expert, load_expert
    from prudent.envs._experts import make_robots

    policy = load_expert(expert)
    scores = {}
    for label, noised in (("clean", False), (f"noised, k = {noise_horizon}", True)):
        envs = make_robots(policy.robot, episodes, noise_horizon=noise_horizon)
        scores[label] = dataclasses.asdict(evaluate_expert(policy, envs, seed=seed, noised=noised))
    _show_scores(policy.robot, scores, as_json)


def _check_seed(seed: int) -> None:
    from prudent.cmr._base import check_seed

    check_seed(seed)


def _show_scores(title: str, scores: dict[str, dict], as_json: bool) -> None:
    names = ["reward", "reward_se", "tracking", "standing", "episodes", "steps"]
    header = ["actions", "reward per step", "s.e.", "(v - u_o)^2", "without a fall", "episodes", "steps"]
    rows = [[label, *(score[name] for name in names)] for label, score in scores.items()]
    show(title, ["actions", *names] if as_json else header, rows, as_json=as_json)
