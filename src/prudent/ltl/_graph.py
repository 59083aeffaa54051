"""Strongly connected components of a graph given as lists of successors."""

from __future__ import annotations

from collections.abc import Sequence


def components(successors: Sequence[Sequence[int]]) -> list[int]:
    """Number the strongly connected components (Tarjan, without recursion).

    Returns one number a vertex; an edge between components goes to the smaller number.
    """
    n = len(successors)
    component = [-1] * n
    index = [0] * n
    low = [0] * n
    stack: list[int] = []
    counter = 0
    n_components = 0
    for root in range(n):
        if index[root]:
            continue
        counter += 1
        index[root] = low[root] = counter
        stack.append(root)
        work = [(root, iter(successors[root]))]
        while work:
            v, rest = work[-1]
            for w in rest:
                if not index[w]:
                    counter += 1
                    index[w] = low[w] = counter
                    stack.append(w)
                    work.append((w, iter(successors[w])))
                    break
                if component[w] < 0 and index[w] < low[v]:
                    low[v] = index[w]
            else:
                work.pop()
                if low[v] == index[v]:
                    while True:
                        w = stack.pop()
                        component[w] = n_components
                        if w == v:
                            break
                    n_components += 1
                if work and low[v] < low[work[-1][0]]:
                    low[work[-1][0]] = low[v]
    return component
