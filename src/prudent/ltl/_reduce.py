"""Making limit-deterministic automata smaller without changing what they accept, or their use in MDPs.

- States without an accepting continuation become the trap.
- Deterministic part: states of equal language are merged when they lie in different components (towards the lower
  one), in a component whose cycles are all accepting or all rejecting, or when they are bisimilar; further merges are
  tried and proved.
- Initial part: states of equal language are merged, and keep the jumps of all; a state whose language one deterministic
  state has is replaced by it. A jump goes if another jump of the state accepts more, or if it can wait for a later one.

Merging initial states of equal language is safe for MDPs because the merged state offers every jump of the states it
stands for; waiting is safe because a policy that would jump can as well follow the jump's own automaton in its memory
and jump later.
"""

from __future__ import annotations

from collections.abc import Callable

from prudent.ltl._bdd import BDD
from prudent.ltl._graph import components
from prudent.ltl._language import Languages, accepts_word, random_words
from prudent.ltl._sketch import Table, TranslationLimitError, merge_letters

_MAX_STATES = 600  # language tests above this size cost more than they save
_MAX_STATES_TO_TRY, _MAX_TRIALS = 150, 400


def reduce_table(table: Table, bdd: BDD, tick: Callable[[], None]) -> Table:
    """Return an equivalent table with fewer states; when ``tick`` raises, what has been reached by then."""
    table = trim(table)
    try:
        while True:
            table = merge_letters(merge_bisimilar(table), bdd)
            if not 1 < table.n_states <= _MAX_STATES:
                return table
            table = trim(merge_equal(table, tick))
            if not any(table.epsilon):
                return merge_letters(table, bdd)
            n_states = table.n_states
            table = trim(prune_jumps(table, tick))
            if table.n_states == n_states:
                return merge_letters(table, bdd)
    except TranslationLimitError:
        return table


def _graph(table: Table) -> list[list[int]]:
    return [
        [p for p in {*target, *epsilon} if p >= 0] for target, epsilon in zip(table.target, table.epsilon, strict=True)
    ]


def trim(table: Table) -> Table:
    """Send edges into hopeless states to the trap, drop unreachable states, number the rest as they are found."""
    graph = _graph(table)
    component = components(graph)
    live = [False] * table.n_states
    for q in range(table.n_states):
        for p, mark in zip(table.target[q], table.accepting[q], strict=True):
            if mark and p >= 0 and component[p] == component[q]:
                live[q] = True
    alive = [False] * (max(component, default=-1) + 1)
    # Components are numbered so that successors come first.
    for q in sorted(range(table.n_states), key=lambda state: component[state]):
        alive[component[q]] |= live[q] or any(alive[component[p]] for p in graph[q])
    return _select(table, lambda q: q if q >= 0 and alive[component[q]] else -1)


def _select(table: Table, image: Callable[[int], int]) -> Table:
    """Redirect every reference to state q to ``image(q)``, keep what is reachable."""
    initial = image(table.initial)
    order = [initial] if initial >= 0 else []
    number = {initial: 0} if initial >= 0 else {}
    for q in order:
        for p in [*table.target[q], *sorted(table.epsilon[q])]:
            p = image(p)
            if p >= 0 and p not in number:
                number[p] = len(order)
                order.append(p)
    number[-1] = -1
    moved = {q: number[image(q)] for q in range(-1, table.n_states) if image(q) in number}
    target = [[moved[p] for p in table.target[q]] for q in order]
    accepting = [
        [mark and p >= 0 for p, mark in zip(row, table.accepting[q], strict=True)]
        for row, q in zip(target, order, strict=True)
    ]
    epsilon = [{moved[p] for p in table.epsilon[q]} - {-1} for q in order]
    return Table(table.guards, target, accepting, epsilon, number[initial])


def normalise_acceptance(table: Table) -> None:
    """Mark every edge that lies on no rejecting cycle, except between components, where marks mean nothing."""
    graph = _graph(table)
    component = components(graph)
    rejecting = [
        [p for p, mark in zip(row, marks, strict=True) if p >= 0 and not mark and component[p] == component[q]]
        for q, (row, marks) in enumerate(zip(table.target, table.accepting, strict=True))
    ]
    inner = components(rejecting)
    has_acceptance = [False] * (max(component, default=-1) + 1)
    for q, (row, marks) in enumerate(zip(table.target, table.accepting, strict=True)):
        for p, mark in zip(row, marks, strict=True):
            if p >= 0 and mark and component[p] == component[q]:
                has_acceptance[component[q]] = True
    for q, row in enumerate(table.target):
        table.accepting[q] = [
            p >= 0 and component[p] == component[q] and has_acceptance[component[q]] and (mark or inner[p] != inner[q])
            for p, mark in zip(row, table.accepting[q], strict=True)
        ]


def merge_bisimilar(table: Table) -> Table:
    """Quotient by the coarsest partition that respects edges, marks and jumps."""
    normalise_acceptance(table)
    block = [0] * table.n_states
    n_blocks = 1
    while True:
        number: dict[tuple[object, ...], int] = {}
        refined = []
        for q in range(table.n_states):
            key = (
                block[q],
                tuple(
                    (block[p] if p >= 0 else -1, mark)
                    for p, mark in zip(table.target[q], table.accepting[q], strict=True)
                ),
                frozenset(block[p] for p in table.epsilon[q]),
            )
            refined.append(number.setdefault(key, len(number)))
        block = refined
        if len(number) == n_blocks:
            break
        n_blocks = len(number)
    if n_blocks == table.n_states:
        return table
    first: dict[int, int] = {}
    for q, b in enumerate(block):
        first.setdefault(b, q)
    return _select(table, lambda q: first[block[q]] if q >= 0 else -1)


def merge_equal(table: Table, tick: Callable[[], None]) -> Table:
    """Merge states of equal language wherever that is safe."""
    languages = Languages(table, tick)
    component = components(_graph(table))
    kind = _component_kinds(table, component)
    classes = _language_classes(table, languages)
    image = list(range(table.n_states))
    epsilon = [set(e) for e in table.epsilon]
    outside: dict[int, int] = {}  # where edges from other components enter the class
    for members in classes:
        deterministic = [q for q in members if languages.is_det[q]]
        if deterministic:
            chosen = min(deterministic, key=lambda q: (component[q], q))
            for q in members:
                same = languages.is_det[q] and component[q] == component[chosen]
                if not same or kind[component[q]] != "mixed":
                    image[q] = chosen
                outside[q] = chosen
        else:
            # The lowest component is kept, so that no new cycle arises among states that only pass on.
            chosen = min(members, key=lambda q: (component[q], q))
            for q in members:
                image[q] = chosen
                epsilon[chosen] |= epsilon[q]
    target = [
        [outside[p] if p in outside and component[p] != component[q] else p for p in row]
        for q, row in enumerate(table.target)
    ]
    epsilon = [{outside.get(p, p) for p in e} for e in epsilon]
    merged = Table(table.guards, target, table.accepting, epsilon, outside.get(table.initial, table.initial))
    is_open = any(len({image[q] for q in members}) > 1 for members in classes)
    merged = _select(merged, lambda q: image[q] if q >= 0 else -1)
    return _try_merges(merged, tick) if is_open else merged


def _component_kinds(table: Table, component: list[int]) -> list[str]:
    """Say for each component whether its cycles are all accepting ("good"), none ("bad"), or "mixed"."""
    n = max(component) + 1
    some = [False] * n
    rejecting: list[list[int]] = []
    for q, row in enumerate(table.target):
        inside = []
        for p, mark in zip(row, table.accepting[q], strict=True):
            if p >= 0 and component[p] == component[q]:
                if mark:
                    some[component[q]] = True
                else:
                    inside.append(p)
        rejecting.append(inside)
    inner = components(rejecting)
    lasting = [False] * n
    for q, row in enumerate(rejecting):
        if any(inner[p] == inner[q] for p in row):
            lasting[component[q]] = True
    return ["mixed" if s and r else "good" if s else "bad" for s, r in zip(some, lasting, strict=True)]


def _language_classes(table: Table, languages: Languages) -> list[list[int]]:
    groups: dict[int, list[list[int]]] = {}
    for q in range(table.n_states):
        for members in groups.setdefault(languages.signature[q], []):
            if languages.equal(members[0], q):
                members.append(q)
                break
        else:
            groups[languages.signature[q]].append([q])
    return [members for found in groups.values() for members in found]


def _try_merges(table: Table, tick: Callable[[], None]) -> Table:
    """Merge states of equal language in one component of the deterministic part when a proof succeeds afterwards."""
    if table.n_states > _MAX_STATES_TO_TRY:
        return table
    languages = Languages(table, tick)
    image = list(range(table.n_states))
    n_trials = 0
    for members in _language_classes(table, languages):
        kept = [q for q in members if languages.is_det[q]]
        for p in list(kept):
            for q in kept:
                if p == q:
                    continue
                n_trials += 1
                if n_trials > _MAX_TRIALS:
                    break
                if _keeps_language(table, p, q, languages.signature[q]):
                    # Languages stay as they were, so what is known about them stays true.
                    image[p] = q
                    redirect = [q if r == p else r for r in range(table.n_states)]
                    table = _redirected(table, [*redirect, -1])
                    kept.remove(p)
                    break

    def final(q: int) -> int:
        while q >= 0 and image[q] != q:
            q = image[q]
        return q

    return _select(table, final)


def _redirected(table: Table, image: list[int]) -> Table:
    """Send every edge and jump into q to ``image[q]``; the last entry is the image of the trap."""
    target = [[image[p] for p in row] for row in table.target]
    epsilon = [{image[p] for p in jumps} for jumps in table.epsilon]
    return Table(table.guards, target, table.accepting, epsilon, image[table.initial])


def _keeps_language(table: Table, p: int, q: int, signature: int) -> bool:
    """Say whether sending every edge into ``p`` to ``q`` keeps the language of ``q``."""
    n = table.n_states
    shifted = [[-1 if r < 0 else n + (q if r == p else r) for r in row] for row in table.target]
    nothing: list[set[int]] = [set() for _ in range(2 * n)]
    both = Table(table.guards, table.target + shifted, table.accepting + table.accepting, nothing, 0)
    words = random_words(len(table.guards))[: 10 + 2 * n]
    if any(bool(signature >> bit & 1) != accepts_word(both, n + q, *word) for bit, word in enumerate(words)):
        return False
    languages = Languages(both, signature=[0] * (2 * n))  # the words have been tried: no filter
    return languages.included(q, n + q) and languages.included(n + q, q)


def prune_jumps(table: Table, tick: Callable[[], None]) -> Table:
    """Drop jumps that other jumps make needless."""
    if not any(table.epsilon):
        return table
    languages = Languages(table, tick)
    component = components(_graph(table))
    epsilon = [set(e) for e in table.epsilon]
    for jumps in epsilon:
        for d in sorted(jumps):
            if any(other != d and languages.included(d, other) for other in jumps):
                jumps.discard(d)
    # A jump can wait if after every letter a jump that is still there, or the state reached itself, accepts as much.
    candidates = sorted(((q, d) for q, jumps in enumerate(epsilon) for d in jumps), key=lambda j: (-component[j[1]], j))
    for q, d in candidates:
        if all(
            d2 < 0
            or (q2 >= 0 and languages.is_det[q2] and languages.included(d2, q2))
            or (q2 >= 0 and any((q2, other) != (q, d) and languages.included(d2, other) for other in epsilon[q2]))
            for d2, q2 in zip(table.target[d], table.target[q], strict=True)
        ):
            epsilon[q].discard(d)
    return Table(table.guards, table.target, table.accepting, epsilon, table.initial)
