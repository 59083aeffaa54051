"""Models in the PRISM language, and checks by a ``prism`` on the PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from prudent.ltl._errors import CheckError
from prudent.ltl._maximise import rational_entries
from prudent.ltl._mdp import LabelledMDP

if TYPE_CHECKING:
    from prudent.ltl._policy import Policy

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = (
    "A bool clock const ctmc C double dtmc E endinit endinvariant endmodule endobservables endrewards endsystem false "
    "formula filter func F global G init invariant I int label max mdp min module X nondeterministic observable "
    "observables of Pmax Pmin P pomdp popta probabilistic prob pta rate rewards Rmax Rmin R S stochastic system true "
    "U W"
)
_KEYWORDS = frozenset(_RESERVED.split())
_RESULT = re.compile(r"^Result[^:\n]*:\s*([^\s(]+)", re.MULTILINE)


def model_text(mdp: LabelledMDP) -> str:
    """An MDP (or chain) as a PRISM module with one variable ``s``."""
    numbers = _numbers(mdp)
    names = _action_names(mdp.actions)
    lines = ["dtmc" if mdp.is_chain else "mdp", "", "module model"]
    lines.append(f"    s : [0..{max(mdp.n_states - 1, 1)}] init {_first_state(mdp)};")
    for state in range(mdp.n_states):
        for row in range(mdp.choice_start[state], mdp.choice_start[state + 1]):
            start, stop = mdp.transitions.indptr[row], mdp.transitions.indptr[row + 1]
            outcomes = [f"{numbers[e]} : (s'={mdp.transitions.indices[e]})" for e in range(start, stop)]
            lines.append(f"    [{names[mdp.choice_action[row]]}] s={state} -> {' + '.join(outcomes)};")
    lines += ["endmodule", ""]
    lines += _label_lines(mdp, [f"s={s}" for s in range(mdp.n_states)], mdp.letter_of)
    return "\n".join(lines) + "\n"


def chain_text(policy: Policy, mdp: LabelledMDP) -> str:
    """The induced chain of a policy: ``m`` is the environment's state and ``a`` the automaton's.

    A step that begins with an epsilon move of the policy is marked ``[ep]``, others ``[ac]``. The epsilon move and the
    action after it are one command: as a step of its own it would count as time for the operator X.
    """
    chain, states, memory = policy.unfold_chain(mdp)
    numbers, first = _numbers(chain), _first_state(chain)
    places = [f"(m={s})&(a={a})" for s, a in zip(states, memory, strict=True)]
    moves = [f"(m'={s})&(a'={a})" for s, a in zip(states, memory, strict=True)]
    lines = [
        "dtmc",
        "",
        "module ProductMDP",
        f"    m : [0..{max(mdp.n_states - 1, 1)}] init {states[first]};",
        f"    a : [0..{max(policy.automaton.n_states - 1, 1)}] init {memory[first]};",
    ]
    for i in range(chain.n_states):
        start, stop = chain.transitions.indptr[i], chain.transitions.indptr[i + 1]
        outcomes = [f"{numbers[e]} : {moves[chain.transitions.indices[e]]}" for e in range(start, stop)]
        kind = "ep" if policy.choices[states[i], memory[i]] >= mdp.n_actions else "ac"
        lines.append(f"    [{kind}] {places[i]} -> {' + '.join(outcomes)};")
    lines += ["endmodule", ""]
    lines += _label_lines(mdp, [f"m={s}" for s in range(mdp.n_states)], mdp.letter_of)
    return "\n".join(lines) + "\n"


def _numbers(mdp: LabelledMDP) -> list[str]:
    """Probabilities as fractions where they are simple, so that the text means exactly the model; else all digits."""
    entries = rational_entries(mdp.transitions.data, mdp.transitions.indptr)
    return [
        str(f) if f.denominator <= 1_000_000 else repr(float(x))
        for f, x in zip(entries, mdp.transitions.data.tolist(), strict=True)
    ]


def _first_state(mdp: LabelledMDP) -> int:
    states = np.flatnonzero(mdp.initial > 0)
    if len(states) != 1:
        raise ValueError(
            f"a PRISM model has one initial state, this one has a distribution over {len(states)}. "
            "Choose one with initial=..., or use backend='native' or 'storm'."
        )
    return int(states[0])


def _label_lines(mdp: LabelledMDP, where: list[str], letter_of: np.ndarray) -> list[str]:
    lines = []
    for proposition in mdp.propositions:
        if not _IDENTIFIER.match(proposition):
            raise ValueError(f"PRISM labels are identifiers, got the proposition {proposition!r}; rename it.")
        if proposition in ("init", "deadlock"):
            raise ValueError(f"the label {proposition!r} is reserved in PRISM; rename the proposition.")
        holds = [w for w, letter in zip(where, letter_of, strict=False) if proposition in mdp.letters[letter]]
        condition = " | ".join(f"({w})" for w in holds) or "false"
        lines.append(f'label "{proposition}" = {condition};')
    return lines


def _action_names(actions: tuple[str, ...]) -> list[str]:
    """Action names as distinct PRISM identifiers."""
    names: list[str] = []
    for action in actions:
        name = re.sub(r"[^A-Za-z0-9_]", "_", action)
        if not _IDENTIFIER.match(name) or name in _KEYWORDS:
            name = f"act_{name}"
        while name in names:
            name += "_"
        names.append(name)
    return names


def run_prism(model: str, query: str, exact: bool, *, timeout_seconds: float = 600.0) -> float | Fraction:
    """Ask a ``prism`` on the PATH. Anything but one clear number is a CheckError."""
    program = shutil.which("prism")
    if program is None:
        raise CheckError(
            "backend='prism' needs the program 'prism' on the PATH, and there is none. Install PRISM "
            "(https://www.prismmodelchecker.org) and add its bin folder to PATH, or use backend='native' or 'storm'."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.prism"
        path.write_text(model, encoding="utf-8")
        command = [program, str(path), "-pf", query, "-maxiters", "1000000", "-epsilon", "1e-12"]
        command += ["-exact"] if exact else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckError(f"prism did not finish: {error}") from error
    found = _RESULT.findall(done.stdout)
    tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
    if done.returncode != 0 or len(found) != 1:
        raise CheckError(f"prism gave no result for {query} (exit code {done.returncode}):\n{tail}")
    try:
        value = Fraction(found[0])
    except ValueError as error:
        raise CheckError(f"prism answered {found[0]!r}, which is not a number, for {query}:\n{tail}") from error
    if not 0 <= value <= 1 + Fraction(1, 10**6):
        raise CheckError(f"prism answered {found[0]}, which is not a probability, for {query}.")
    return value if exact else float(value)
