"""Learning with a certificate: plan on intervals, explore what the answer still depends on, stop when it is known.

Each planning computes a robust lower value (of a policy that carries it), an optimistic upper value of the optimum,
and a guess: the best policy if what was seen were all there is. Then

* *verify*: if the guess is as good as the upper bound, only rows that its policy may take need proof;
* *search*: otherwise something unknown may be better, so rows that an optimal optimist may take are tried, those with
  few visits and those near the start first;
* *refine*: when all of these have proven support, only interval widths are left, and rows are sampled by what one
  more visit is expected to take off the gap between the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from numba import njit

from prudent.ltl import _explore as ex
from prudent.ltl._book import (
    CONFLICT_KIND,
    CONFLICT_ROW,
    LATE,
    N_OPEN,
    N_SLOTS,
    N_STEPS,
    NO_CONFLICT,
    TOO_RARE,
    foresee,
    grow,
    new_book,
    update_intervals,
)
from prudent.ltl._confidence import SUPPORT_SHARE, concentration, most_successors, support_visits
from prudent.ltl._interval import (
    Arena,
    Table,
    build_arena,
    choice_values,
    group_maximum,
    robust_values,
    tabulate,
)
from prudent.ltl._maximise import UNKNOWN
from prudent.ltl._source import EnvSource, ModelSource
from prudent.ltl._strategy import (
    guess_strategy,
    induced,
    model_rows,
    robust_strategy,
    rows_used,
    start_choice,
    strategy_table,
)
from prudent.ltl._unfold import Unfolded

# Extra cost of a row without proof, in steps, when a guess is made: a detour over proven rows is often cheaper than
# the visits that a proof takes.
UNPROVEN_COST = 10.0
# A guess over more rows than this is first tried with so many visits of each, then proven.
MANY_ROWS = 100
FIRST_VISITS = 32
# Search tries a state at depth d (expected tries from the start) reach / d times, all nearer than this alike, and
# multiplies its reach when all have had theirs.
NEAR = 30.0
REACH_GROWTH = 1.5
# Up to so many visits search tries what the optimist avoids as well: risky ways show soonest what there is.
FEW_VISITS = 8
# Multiples of a row's visits at which its intervals are foreseen.
FORESEEN = (2, 8, 32, 128, 512)
# Choices within this of the best upper value count as optimal for the optimist.
OPTIMIST_TOLERANCE = 1e-7


@dataclass(eq=False)
class Wishes:
    """What exploration is asked for until the next planning."""

    quota: np.ndarray
    scratch: ex.Scratch
    depth: np.ndarray
    """Expected tries from the start to each state; the last is the reset."""
    watch: bool = False
    """Whether a new successor calls for planning."""
    fresh_quota: int = 0
    """Draws wanted of each action of a state seen for the first time; -1 if quotas end with the proof of support."""
    reach: float = NEAR
    """Search tries a state of depth d up to reach / d times."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Result of one planning."""

    lower: float
    upper: float
    policy_upper: float
    choices: np.ndarray
    mode: str


@dataclass(frozen=True, eq=False)
class Guess:
    """A policy for what was seen."""

    value: float
    strategy: np.ndarray
    model: Unfolded
    used: np.ndarray
    """Rows of the book that it may take."""


class Learner:
    """The state of a run: book, bounds, and the source of samples."""

    def __init__(
        self,
        source: ModelSource | EnvSource,
        *,
        confidence: float,
        p_min: float,
        epsilon: float,
        gap: float,
        resets: bool,
    ):
        self.source = source
        self.p_min = p_min
        self.epsilon = epsilon
        self.gap = gap
        self.resets = resets
        n_states, n_actions = source.actions.shape
        n_rows = n_states * n_actions + 1
        error = 1.0 - confidence
        needed = support_visits(p_min, most_successors(p_min, n_states), SUPPORT_SHARE * error / n_rows)
        self.interval_share = (1.0 - SUPPORT_SHARE) * error
        self.book = new_book(n_states, n_rows, needed)
        self.wishes = Wishes(
            quota=np.zeros(n_rows, np.int64),
            scratch=ex.new_scratch(n_states),
            depth=np.zeros(n_states + 1),
            fresh_quota=1,
        )
        n_q = source.automata.next_q.shape[1]
        self.low = np.zeros((n_states + 2, n_q))
        self.high = np.ones((n_states + 2, n_q))
        self.upper = 1.0
        self.done_visits = np.zeros(n_rows, np.int64)
        self._default = source.actions.argmax(axis=1).astype(np.int32)
        # The first draw: where do we start?
        self._want(np.array([n_rows - 1]), np.array([1]))

    @property
    def steps(self) -> int:
        return int(self.book.tally[N_STEPS])

    @property
    def has_conflict(self) -> bool:
        return self.book.tally[CONFLICT_KIND] != NO_CONFLICT

    def conflict(self) -> str:
        """How the data contradict the assumption."""
        row, kind = int(self.book.tally[CONFLICT_ROW]), int(self.book.tally[CONFLICT_KIND])
        n_actions = self.source.actions.shape[1]
        if row == len(self.book.visits) - 1:
            where = "the reset"
        else:
            where = f"state {self.source.name(row // n_actions)}, action {self.source.action_names[row % n_actions]!r}"
        n, most = int(self.book.visits[row]), len(self.book.needed) - 1
        n_shown = np.count_nonzero(self.book.slot_row[: self.book.tally[N_SLOTS]] == row)
        late = f"showed a new successor at visit {n}, after its support counted as proven"
        what = {
            LATE: f"has more than {most} successors" if n_shown > most else late,
            TOO_RARE: f"has a successor that is rarer than p_min in {n} visits",
        }.get(kind, f"has intervals that exclude each other after {n} visits")
        return (
            f"{where} {what}, which contradicts p_min={self.p_min:.6g} (or is an error that the confidence allows). "
            "Lower p_min and learn again."
        )

    def explore(self, stop_at: int) -> int:
        """Sample until there is a reason to plan; the reason."""
        steps = self.steps
        patience = steps + max(20, steps // 50)
        if self.wishes.fresh_quota > 0:
            # While searching, what was found may make the rest of the search needless.
            stop_at = min(stop_at, steps + max(100, steps // 8))
        while True:
            reason = self.source.explore(self.book, self.wishes, stop_at, patience, self.resets)
            if reason != ex.POOL_FULL:
                return reason
            self.book = grow(self.book)

    def plan(self) -> Plan:
        """Bounds and policy from the book, and what to explore next."""
        book, source = self.book, self.source
        if not self.resets:
            # The certificate is for the state that the one run began in.
            book.certified[-1] = True
        update_intervals(book, self.p_min, self.interval_share, concentration(self.epsilon), self.done_visits)
        if self.has_conflict:
            return self._void()
        table = tabulate(book, source.actions, True)
        arena = build_arena(table, source.automata)
        low, low_choice, high, high_choice = self._values(arena)
        first = int(np.flatnonzero(arena.quotient.original == start_choice(arena.model))[0])
        lower = _value_at(arena, first, low, -1.0)
        self.upper = upper = min(self.upper, _value_at(arena, first, high, 1.0))
        lower = lower if lower >= self.epsilon else 0.0
        guess = self._guess()
        n_q = source.automata.next_q.shape[1]
        if lower > 0.0:
            robust = robust_strategy(arena, low, low_choice)
            choices = strategy_table(robust, arena.model, self._default, n_q)
        else:
            choices = strategy_table(guess.strategy, guess.model, self._default, n_q)
        policy_upper = self._policy_upper(table, choices) if 0.0 < lower < upper else upper
        mode = "done"
        if upper - lower > self.gap or policy_upper - lower > self.epsilon:
            mode = self._wish(arena, (low, low_choice), (high, high_choice), guess, upper)
        return Plan(lower, upper, min(policy_upper, upper), choices, mode)

    def _guess(self) -> Guess:
        """The best policy if what was seen were all there is."""
        table = tabulate(self.book, self.source.actions, False)
        arena = build_arena(table, self.source.automata)
        model, rows = arena.model, model_rows(arena, table)
        value, strategy = guess_strategy(arena, self._costs(rows))
        used = np.unique(rows_used(model.choice_start, model.row_start, model.successor, rows, strategy))
        return Guess(value, strategy, model, used)

    def _void(self) -> Plan:
        n_q = self.source.automata.next_q.shape[1]
        choices = np.repeat(self._default[:, None], n_q, axis=1).astype(np.int32)
        return Plan(0.0, 1.0, 1.0, choices, "conflict")

    def _values(self, arena: Arena) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Lower and upper values of the quotient with their choices, starting from those of the last planning."""
        state, memory, group = arena.model.state, arena.model.memory, arena.quotient.group
        n_groups = len(arena.quotient.value)
        low, low_choice, _ = robust_values(arena, group_maximum(group, n_groups, self.low[state, memory]), -1)
        high, high_choice, _ = robust_values(arena, group_maximum(group, n_groups, self.high[state, memory]), 1)
        self.low[state, memory] = low[group]
        self.high[state, memory] = high[group]
        return low, low_choice, high, high_choice

    def _policy_upper(self, table: Table, choices: np.ndarray) -> float:
        chain, judge = induced(table, self.source.automata, choices)
        arena = build_arena(chain, judge)
        values, _, _ = robust_values(arena, np.ones(len(arena.quotient.value)), 1)
        first = int(np.flatnonzero(arena.quotient.original == start_choice(arena.model))[0])
        return _value_at(arena, first, values, 1.0)

    def _costs(self, rows: np.ndarray) -> np.ndarray:
        """Cost of each choice for the guess: a step, and more for rows whose support is not proven."""
        book = self.book
        lacking = 1.0 - np.minimum(1.0, book.visits[rows] / book.needed[book.n_seen[rows]])
        return 1.0 + np.where(book.certified[rows], 0.0, UNPROVEN_COST * lacking)

    def _wish(self, arena: Arena, low: tuple, high: tuple, guess: Guess, upper: float) -> str:
        """Set quotas for the next exploration; the mode."""
        book = self.book
        if guess.value >= max(upper - 0.5 * self.epsilon, 1e-9):
            rows = guess.used[~book.certified[guess.used]]
            if len(rows):
                self.wishes.watch, self.wishes.fresh_quota = True, -1
                wanted = book.needed[book.n_seen[rows]]
                is_new = book.visits[rows] < FIRST_VISITS
                if len(rows) > MANY_ROWS and is_new.any():
                    # Most surprises come early and change the guess, so a large one is tried before it is proven.
                    rows, wanted = rows[is_new], np.minimum(wanted[is_new], FIRST_VISITS)
                self._want(rows, wanted - book.visits[rows])
                return "verify"
        open_rows = self._optimist_rows(arena, low[0], high[0])
        if len(open_rows):
            rows = self._unproven_rows()
            self._search(np.union1d(open_rows, rows[book.visits[rows] < FEW_VISITS]))
            return "search"
        gain = self._gains(arena, low, high)
        # Rows of states in which an episode is over cannot be drawn.
        is_over = guess.used >= self.source.n_observations * self.source.actions.shape[1]
        drawable = guess.used[~is_over | (guess.used == len(book.visits) - 1)]
        rows = np.flatnonzero(gain >= 0.5 * gain.max()) if gain.max() > 1e-15 else drawable
        self.wishes.watch, self.wishes.fresh_quota = False, 0
        self._want(rows, np.maximum(8, book.visits[rows] // 16))
        return "refine"

    def _search(self, rows: np.ndarray) -> None:
        """Ask for tries of ``rows`` in proportion to reach / depth, with more reach where all have had theirs.

        Near rows come first, and those far away are left alone while the answer may lie nearer. On a plane, where
        the number of states grows with the square of the depth, most tries still go to states not tried before.
        """
        book, wishes, actions = self.book, self.wishes, self.source.actions
        n_states, n_actions = actions.shape
        position = int(self.source.position[0])
        ex.depths(book, actions, n_states if self.resets or position < 0 else position, wishes.depth)
        depth = np.maximum(NEAR, wishes.depth[np.minimum(rows // n_actions, n_states)])
        least = float(((1.0 + book.visits[rows]) * depth).min())
        if np.isfinite(least):
            while wishes.reach < least:
                wishes.reach *= REACH_GROWTH
            wanted = np.floor(wishes.reach / depth + 1e-9).astype(np.int64)
        else:
            wanted = book.visits[rows] + 1
        wanted = np.minimum(wanted, book.needed[book.n_seen[rows]]) - book.visits[rows]
        wishes.watch, wishes.fresh_quota = False, 1
        self._want(rows[wanted > 0], wanted[wanted > 0])

    def want_anything(self) -> None:
        """Ask for every row that lacks proof: what is left where the wishes cannot be reached."""
        self.wishes.watch, self.wishes.fresh_quota = False, 1
        rows = self._unproven_rows()
        self._want(rows, np.ones(len(rows), np.int64))

    def _unproven_rows(self) -> np.ndarray:
        """Rows without proof of the states seen."""
        exists = self.source.actions & self.book.is_seen[:, None]
        return np.flatnonzero(exists.ravel() & ~self.book.certified[:-1])

    def _want(self, rows: np.ndarray, wanted: np.ndarray) -> None:
        self.wishes.quota[:] = 0
        self.wishes.quota[rows] = wanted
        self.book.tally[N_OPEN] = np.count_nonzero(self.wishes.quota)

    def _optimist_rows(self, arena: Arena, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Rows without proof that a policy with the largest upper value may take, where its value is open."""
        quotient = arena.quotient
        found = choice_values(
            quotient.choice_start, quotient.row_start, quotient.successor, arena.low, arena.high, high, 1.0
        )
        reached = _optimal_choices(
            quotient.choice_start, quotient.row_start, quotient.successor, found, low, high, int(quotient.group[0])
        )
        rows = arena.base[reached]
        rows = np.unique(rows[rows >= 0])
        return rows[~self.book.certified[rows]]

    def _gains(self, arena: Arena, low: tuple, high: tuple) -> np.ndarray:
        """What one more visit of each row takes off the gap between the bounds, on the average of some number of them.

        The intervals are foreseen with multiples of the visits and the same frequencies. Large multiples matter where
        ``p_min`` says more than the visits do: then the first of them change nothing.
        """
        book, quotient = self.book, arena.quotient
        sides = [(*low, -1.0, quotient.value), (*high, 1.0, arena.upper_fixed)]
        flows = [_flow(arena, choice, fixed) for _, choice, _, fixed in sides]
        is_asked = np.zeros(len(book.visits) + 1, np.bool_)
        for chosen, _ in flows:
            is_asked[arena.base[chosen]] = True
        arrays = (quotient.choice_start, quotient.row_start, quotient.successor)
        now = [choice_values(*arrays, arena.low, arena.high, value, sign) for value, _, sign, _ in sides]
        settings = (self.p_min, self.interval_share, concentration(self.epsilon))
        gain = np.zeros(len(book.visits))
        for times in FORESEEN:
            ends = foresee(book, is_asked, *settings, times)
            table = tabulate(book._replace(slot_low=ends[0], slot_high=ends[1]), self.source.actions, True)
            then_low, then_high = (
                np.where(quotient.entry < 0, 1.0, end[quotient.entry]) for end in (table.low, table.high)
            )
            score = np.zeros(len(book.visits))
            for (value, _, sign, _), (chosen, flow), before in zip(sides, flows, now, strict=True):
                change = np.abs(choice_values(*arrays, then_low, then_high, value, sign) - before)[chosen]
                rows = arena.base[chosen]
                np.add.at(score, rows[rows >= 0], (flow * change)[rows >= 0])
            gain = np.maximum(gain, score / ((times - 1) * np.maximum(1, book.visits)))
        return gain


def _flow(arena: Arena, choice: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choices taken where the graph leaves the value open, and how often each is expected to be, by frequencies."""
    quotient = arena.quotient
    start = int(quotient.group[0])
    if fixed[start] != UNKNOWN or choice[start] < 0:
        return np.empty(0, np.int64), np.empty(0)
    unknown = np.flatnonzero((fixed == UNKNOWN) & (choice >= 0))
    place = np.full(len(choice), -1, np.int64)
    place[unknown] = np.arange(len(unknown))
    chosen = choice[unknown]
    lengths = np.diff(quotient.row_start)[chosen]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    edges = np.repeat(quotient.row_start[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1])
    source = np.repeat(np.arange(len(unknown)), lengths)
    target = place[quotient.successor[edges]]
    inner = target >= 0
    # A little leak keeps the system regular where frequencies hide the way out.
    moves = sp.csc_array(
        (0.9999 * arena.estimate[edges][inner], (target[inner], source[inner])), shape=(len(unknown), len(unknown))
    )
    begin = np.zeros(len(unknown))
    begin[place[start]] = 1.0
    flow = np.asarray(spla.spsolve(sp.eye_array(len(unknown), format="csc") - moves, begin)).ravel()
    return chosen, np.maximum(flow, 0.0)


@njit(cache=True)
def _optimal_choices(choice_start, row_start, successor, found, low, high, start):
    """Choices that keep the upper value, from ``start`` on until lower and upper value meet."""
    n = len(choice_start) - 1
    seen = np.zeros(n, np.bool_)
    queue = np.empty(n, np.int64)
    out = np.zeros(len(found), np.bool_)
    seen[start] = True
    queue[0], n_queue, at = start, 1, 0
    while at < n_queue:
        i = queue[at]
        at += 1
        if high[i] - low[i] <= OPTIMIST_TOLERANCE:
            continue
        for c in range(choice_start[i], choice_start[i + 1]):
            if found[c] < high[i] - OPTIMIST_TOLERANCE or found[c] <= 0.0:
                continue
            out[c] = True
            for e in range(row_start[c], row_start[c + 1]):
                if not seen[successor[e]]:
                    seen[successor[e]] = True
                    queue[n_queue] = successor[e]
                    n_queue += 1
    return np.flatnonzero(out)


def _value_at(arena: Arena, choice: int, value: np.ndarray, sign: float) -> float:
    """Bound after one choice of the quotient."""
    quotient = arena.quotient
    start, stop = int(quotient.row_start[choice]), int(quotient.row_start[choice + 1])
    found = choice_values(
        np.array([0, 1]),
        np.array([0, stop - start]),
        quotient.successor[start:stop],
        arena.low[start:stop],
        arena.high[start:stop],
        value,
        sign,
    )
    return float(np.clip(found[0], 0.0, 1.0))
