"""The three benchmark tasks of "Sample Efficient Model-free RL from LTL" (Shao and Kwiatkowska, 2023)."""

from prudent.envs._grids import grid
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._task import Task


def probabilistic_gate() -> LabelledMDP:
    """A 4 x 10 grid whose easy reward is a dead end: the goal holds with probability 4/5 at best."""
    text = """
        > > > > > > > > > T
        . # # # # # # # # #
        % . . . . . . . . T
        T # # # # # # # # #
    """
    labels = {"a": [*((0, c) for c in range(9)), (2, 9)], "c": [(3, 0)]}
    task = Task("probabilistic gate", "(F G a) & (G !c)", counter=10, episode_length=100, episodes=40_000, zeta=0.995)
    return grid(text, labels, start=(1, 0), p=0.8, task=task)


def frozen_lake() -> LabelledMDP:
    """The 8 x 8 frozen lake with two camps to patrol and ten holes: the goal can be reached with probability 1."""
    text = ["~" * 8] * 8
    holes = [(2, 3), (3, 5), (4, 3), (5, 1), (5, 2), (5, 6), (6, 1), (6, 4), (6, 6), (7, 3)]
    for r, c in [*holes, (7, 7)]:
        text[r] = text[r][:c] + "." + text[r][c + 1 :]
    labels = {"a": [(7, 7)], "b": [(4, 6)], "h": holes}
    task = Task(
        "frozen lake", "((G F a) | (G F b)) & (G !h)", counter=10, episode_length=200, episodes=6_000, zeta=0.99
    )
    return grid(text, labels, start=(0, 0), p=1 / 3, task=task)


def office_world() -> LabelledMDP:
    """An 11 x 15 office: patrol a and b, or write a letter and then patrol tea and workplace; hit no obstacle."""
    text = """
        . . . # . . . # . . . # . . .
        . . . > . . . . . . . . . . .
        . . . # . . . # . . . # . . .
        # . # # # . # # # . # # # . #
        ~ ~ ~ # . . . # . . . # . . .
        ~ ~ ~ # . . . # . . . # . . .
        ~ ~ ~ # . . . # . . . # . . .
        # . # # # . # # # . # # # . #
        . . . # . . . # . . . # . . .
        . . . > . . . . . . . . . . .
        . . . # . . . # . . . # . . .
    """
    labels = {
        "a": [(9, 1)],
        "b": [(1, 1)],
        "l": [(5, 9)],
        "w": [(5, 5)],
        "t": [(2, 4), (8, 10)],
        "o": [(1, 5), (1, 9), (5, 1), (5, 13), (9, 5), (9, 9)],
    }
    task = Task(
        "office world",
        "((F (l & (X ((G F t) & (G F w))))) | ((G F a) & (G F b))) & (G !o)",
        counter=5,
        episode_length=1000,
        episodes=6_000,
        zeta=0.99,
    )
    return grid(text, labels, start=(9, 0), p=0.8, task=task)
