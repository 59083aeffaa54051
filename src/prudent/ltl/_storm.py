"""Storm as an independent judge, through stormpy 2, and as a reader of PRISM models."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from prudent.ltl._errors import CheckError
from prudent.ltl._formula import Formula
from prudent.ltl._maximise import rational_entries
from prudent.ltl._mdp import LabelledMDP

# Storm's default, 1e-6 relative, is too coarse for a judge.
PRECISION = "1/1000000000000"
_RESERVED = ("init", "deadlock")


def _stormpy() -> Any:
    try:
        import stormpy
    except ImportError as error:
        raise CheckError(
            'Storm is not installed: this needs stormpy 2 (Linux or macOS). Run pip install "prudent[storm]", '
            "or use backend='native'."
        ) from error
    if not stormpy.__version__.startswith("2."):
        raise CheckError(f'stormpy 2 is needed, found {stormpy.__version__}. Run pip install "stormpy>=2,<3".')
    return stormpy


def build_storm_model(mdp: LabelledMDP, exact: bool) -> Any:
    """The model as a Storm MDP, or as a chain where there are no choices."""
    stormpy = _stormpy()
    from stormpy import datastructures, models

    kind = stormpy.Rational if exact else float
    P: Any = mdp.transitions
    rows = np.repeat(np.arange(mdp.n_choices), np.diff(P.indptr)).tolist()
    values = P.data.tolist()
    if exact:
        values = [stormpy.Rational(str(f)) for f in rational_entries(P.data, P.indptr)]
    shape: dict[str, Any] = {"rows": mdp.n_choices, "columns": mdp.n_states, "entries": P.nnz, "force_dimensions": True}
    if not mdp.is_chain:
        shape |= {"has_custom_row_grouping": True, "row_groups": mdp.n_states}
    builder = datastructures.SparseMatrixBuilder[kind](**shape)
    groups = [] if mdp.is_chain else [int(x) for x in mdp.choice_start[:-1]]
    builder.add_next_values(rows, P.indices.tolist(), values, groups)
    labelling = models.StateLabeling(mdp.n_states)
    labelling.add_label("init")
    for state in np.flatnonzero(mdp.initial > 0):
        labelling.add_label_to_state("init", int(state))
    for proposition in mdp.propositions:
        if proposition in _RESERVED:
            raise CheckError(f"the label {proposition!r} is reserved in Storm. Rename the proposition.")
        holds = [i for i, letter in enumerate(mdp.letters) if proposition in letter]
        states = np.flatnonzero(np.isin(mdp.letter_of, holds)).tolist()
        labelling.add_label(proposition)
        labelling.set_states(proposition, datastructures.BitVector(mdp.n_states, states))
    parts = models.SparseModelComponents[kind](transition_matrix=builder.build(), state_labeling=labelling)
    return models.SparseDtmc[kind](parts) if mdp.is_chain else models.SparseMdp[kind](parts)


def chain_probability(chain: LabelledMDP, formula: Formula, exact: bool) -> float | Fraction:
    """Probability of a formula in a Markov chain."""
    return _ask(chain, f"P=? [ {formula.to_prism()} ]", exact)


def maximal_probability(mdp: LabelledMDP, formula: Formula, exact: bool) -> float | Fraction:
    """Largest probability of a formula in an MDP."""
    quantity = "P" if mdp.is_chain else "Pmax"
    return _ask(mdp, f"{quantity}=? [ {formula.to_prism()} ]", exact)


def _ask(mdp: LabelledMDP, query: str, exact: bool) -> float | Fraction:
    stormpy = _stormpy()
    mdp = _relevant_part(mdp)
    model = build_storm_model(mdp, exact)
    try:
        options = {}
        if not exact:
            environment = stormpy.environments.sound()
            environment.solver().min_max().precision = stormpy.Rational(PRECISION)
            environment.solver().native().precision = stormpy.Rational(PRECISION)
            options["environment"] = environment
        result = stormpy.model_checking(model, stormpy.parse_property(query), **options)
        first = np.flatnonzero(mdp.initial > 0)
        values = [result.get_value(int(s)) for s in first]
    except Exception as error:
        raise CheckError(
            f"Storm failed on {query}: {error}. It cannot check every formula; use backend='native'."
        ) from error
    if not exact:
        total = float(mdp.initial[first] @ np.array(values, float))
        if not -1e-9 <= total <= 1 + 1e-9:
            raise CheckError(f"Storm answered {total}, which is not a probability, for {query}.")
        return total
    weights = rational_entries(mdp.initial[first], np.array([0, len(first)]))
    return sum((w * Fraction(str(v)) for w, v in zip(weights, values, strict=False)), Fraction(0))


def _relevant_part(mdp: LabelledMDP) -> LabelledMDP:
    """Reachable states, those without predecessor first: Storm 2.0 fails on chains that end with such states."""
    reached = mdp.reachable()
    is_target = np.zeros(mdp.n_states, bool)
    is_target[mdp.transitions.indices] = True
    return mdp.restrict(np.concatenate([reached[~is_target[reached]], reached[is_target[reached]]]))


def model_from_prism(source: str | Path, constants: str = "") -> LabelledMDP:
    """Build the explicit model of a PRISM file (or text), with all its labels."""
    stormpy = _stormpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(source) if isinstance(source, Path) or "\n" not in source else Path(folder) / "model.prism"
        if path.parent == Path(folder):
            path.write_text(str(source), encoding="utf-8")
        if not path.is_file():
            raise FileNotFoundError(f"there is no PRISM file {path}.")
        options = stormpy.BuilderOptions()
        options.set_build_all_labels(True)
        options.set_build_choice_labels(True)
        options.set_build_state_valuations(True)
        try:
            program = stormpy.parse_prism_program(str(path))
            if constants:
                program = stormpy.instantiate_constants(program, constants)[0]
            model = stormpy.build_model(program, options=options)
        except Exception as error:
            raise ValueError(f"Storm cannot read this PRISM model: {error}") from error
    if not model.is_discrete_time_model or model.is_partially_observable:
        raise ValueError(f"the PRISM model must be a dtmc or an mdp, got {model.model_type}.")
    return _from_storm(model)


def _from_storm(model: Any) -> LabelledMDP:
    n = model.nr_states
    matrix = model.transition_matrix
    starts = [matrix.get_row_group_start(s) for s in range(n)] + [matrix.nr_rows]
    rows, columns, values = [], [], []
    for row in range(matrix.nr_rows):
        for entry in matrix.get_row(row):
            rows.append(row)
            columns.append(entry.column)
            values.append(entry.value)
    names = sorted(set(model.labeling.get_labels()) - set(_RESERVED))
    labels: list[set[str]] = [set() for _ in range(n)]
    for name in names:
        for state in model.labeling.get_states(name):
            labels[state].add(name)
    actions, choice_action = _name_actions(model, starts)
    letters: dict[frozenset[str], int] = {}
    letter_of = np.array([letters.setdefault(frozenset(s), len(letters)) for s in labels], np.int32)
    if len(model.initial_states) != 1:
        raise ValueError(f"the PRISM model has {len(model.initial_states)} initial states; choose one.")
    initial = np.zeros(n)
    initial[model.initial_states[0]] = 1.0
    return LabelledMDP(
        transitions=sp.csr_array((values, (rows, columns)), shape=(matrix.nr_rows, n)),
        choice_start=np.array(starts, np.int32),
        choice_action=choice_action,
        actions=actions,
        propositions=tuple(names),
        letters=tuple(letters),
        letter_of=letter_of,
        initial=initial,
        state_names=tuple(_valuation(model, s) for s in range(n)) if model.has_state_valuations() else None,
    )


def _name_actions(model: Any, starts: list[int]) -> tuple[tuple[str, ...], np.ndarray]:
    """A name for each choice; choices of one state without a name of their own are numbered."""
    names: dict[str, int] = {}
    choice_action = np.empty(starts[-1], np.int32)
    for state in range(len(starts) - 1):
        used: set[str] = set()
        for row in range(starts[state], starts[state + 1]):
            given = sorted(model.choice_labeling.get_labels_of_choice(row)) if model.has_choice_labeling() else []
            base = given[0] if given else "act"
            name, k = base, 0
            while name in used:
                k += 1
                name = f"{base}_{k}"
            used.add(name)
            choice_action[row] = names.setdefault(name, len(names))
    return tuple(names), choice_action


def _valuation(model: Any, state: int) -> str:
    return model.state_valuations.to_string(state)
