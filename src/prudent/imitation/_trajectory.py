"""Demonstrations: one record per episode, checked once, and the formats in which they come and go."""

import dataclasses
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.cmr._arrays import as_matrix
from prudent.errors import DataError

if TYPE_CHECKING:
    import minari


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode: T actions between T + 1 observations.

    ``observations[t]`` is what was seen when ``actions[t]`` was chosen; the last observation follows the last action.
    ``hidden`` holds what no learner may see (u_o, u_e), one row per observation or per action; learners ignore it.
    ``actions`` are those recorded, noise included. ``terminated`` says that the episode ended by itself (a fall, a
    goal); else it was cut, or nothing is known.
    """

    observations: np.ndarray
    actions: np.ndarray
    hidden: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    terminated: bool = False

    def __post_init__(self) -> None:
        cure = "Cut the episode before that step, or leave it out; without a row, the others would not fit together."
        observations = as_matrix("observations", self.observations, cure=cure)
        actions = as_matrix("actions", self.actions, cure=cure)
        if len(observations) != len(actions) + 1:
            raise DataError(
                f"an episode of {len(actions)} actions needs {len(actions) + 1} observations, one more than actions, "
                f"got {len(observations)}. Add the observation after the last action, or drop the last action."
            )
        hidden = _hidden_arrays("hidden", self.hidden)
        for name, values in hidden.items():
            if values.ndim == 0 or len(values) not in (len(actions), len(observations)):
                raise DataError(f"hidden variable {name!r} must have a row per step, got shape {values.shape}.")
        # Copies that cannot be written to: windows are views of them.
        observations, actions = observations.copy(), actions.copy()
        for array in (observations, actions, *hidden.values()):
            array.setflags(write=False)
        fields = {"observations": observations, "actions": actions, "hidden": MappingProxyType(hidden)}
        for name, value in {**fields, "terminated": bool(self.terminated)}.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping can neither be pickled nor copied.
        return Trajectory, (self.observations, self.actions, dict(self.hidden), self.terminated)

    def __len__(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def __repr__(self) -> str:
        seen, done = self.observations.shape[1], self.actions.shape[1]
        return f"Trajectory({len(self)} steps, {seen} observed columns, {done} action columns)"


def _hidden_arrays(what: str, hidden: Any) -> dict[str, np.ndarray]:
    """Hidden variables as new arrays of numbers."""
    if not isinstance(hidden, Mapping):
        raise DataError(
            f"{what} must be a dict of names and values, got {type(hidden).__name__}. Give {{name: values}}."
        )
    arrays = {}
    for name, values in hidden.items():
        try:
            arrays[name] = np.array(values, dtype=float)
        except (TypeError, ValueError) as cause:
            raise DataError(
                f"hidden variable {name!r} must be an array of numbers, got {type(values).__name__} ({cause}). Leave "
                "it out, or encode it as numbers."
            ) from None
    return arrays


def check_trajectories(trajectories: Any) -> list[Trajectory]:
    """A non-empty list of trajectories with equal columns."""
    if isinstance(trajectories, Trajectory) or not np.iterable(trajectories):
        trajectories = [trajectories]
    found = list(trajectories)
    for item in found:
        if not isinstance(item, Trajectory):
            raise TypeError(
                f"demonstrations must be Trajectory records, got {type(item).__name__}. "
                "Make them with prudent.imitation.from_arrays, from_minari or load_trajectories."
            )
    if not found:
        raise DataError("at least one trajectory is needed, got none.")
    widths = {(t.observations.shape[1], t.actions.shape[1]) for t in found}
    if len(widths) > 1:
        raise DataError(f"trajectories must have equal (observation, action) columns, got {sorted(widths)}.")
    return found


def from_arrays(
    observations: Sequence[Any],
    actions: Sequence[Any],
    *,
    hidden: Mapping[str, Sequence[Any]] | None = None,
    terminated: Sequence[Any] | None = None,
) -> list[Trajectory]:
    """Trajectories from one array per episode: observations (T + 1, d) or (T + 1,), actions (T, a) or (T,).

    An array of shape (episodes, T + 1, d) does, too. ``hidden`` has one such sequence per variable; ``terminated`` says
    which episodes ended by themselves.
    """
    if getattr(observations, "ndim", 0) == getattr(actions, "ndim", 0) == 2:
        # One episode (T, d) looks like T episodes of one column, and often has the lengths of such.
        raise DataError(
            "observations and actions must have one array per episode, got two tables, of shapes "
            f"{np.shape(observations)} and {np.shape(actions)}, that may be one episode. A single episode: "
            "from_arrays([observations], [actions]); episodes of one column: from_arrays(list(observations), "
            "list(actions))."
        )
    if len(observations) != len(actions):
        raise DataError(
            f"observations and actions must have one array per episode, got {len(observations)} and {len(actions)}. A "
            "single episode: from_arrays([observations], [actions])."
        )
    names = dict(hidden or {})
    for name, values in names.items():
        if len(values) != len(actions):
            raise DataError(f"hidden variable {name!r} must have {len(actions)} episodes, got {len(values)}.")
    ended = [False] * len(actions) if terminated is None else terminated
    if len(ended) != len(actions):
        raise DataError(f"terminated must have one value for each of {len(actions)} episodes, got {len(ended)}.")
    return check_trajectories(
        _episode(i, o, a, {name: values[i] for name, values in names.items()}, terminated=bool(ended[i]))
        for i, (o, a) in enumerate(zip(observations, actions, strict=True))
    )


def _episode(number: int, *parts: Any, terminated: bool) -> Trajectory:
    """A trajectory, or an error that says which one."""
    try:
        return Trajectory(*parts, terminated=terminated)
    except DataError as cause:
        raise DataError(f"episode {number} (counted from 0): {cause}") from None


def from_minari(dataset: "minari.MinariDataset | str") -> list[Trajectory]:
    """Trajectories from a Minari dataset or the id of one on this machine; flat observations and actions.

    Per-step numbers under ``infos["hidden"]`` become hidden variables.
    """
    from gymnasium.spaces import Discrete, MultiDiscrete

    found = _load_minari(dataset) if isinstance(dataset, str) else dataset
    if not hasattr(found, "iterate_episodes"):
        raise DataError(f"dataset must be a Minari dataset or its id, got {type(found).__name__}.")
    if isinstance(found.action_space, Discrete | MultiDiscrete):
        raise DataError(
            f"actions must be continuous, got {found.action_space}: a mean of their numbers is no action. Bring "
            "demonstrations with a Box action space."
        )
    trajectories = []
    for episode in found.iterate_episodes():
        if isinstance(episode.observations, dict | tuple) or isinstance(episode.actions, dict | tuple):
            raise DataError(
                "Minari episodes must have array observations and actions, got a dict or tuple. "
                "Flatten them with gymnasium.spaces.flatten first."
            )
        steps = len(episode.actions)
        observations = np.asarray(episode.observations, dtype=float).reshape(len(episode.observations), -1)
        actions = np.asarray(episode.actions, dtype=float).reshape(steps, -1)
        recorded = episode.infos.get("hidden", {}) if isinstance(episode.infos, dict) else {}
        arrays = _hidden_arrays("infos['hidden']", recorded)
        hidden = {name: _without_filling(values, steps) for name, values in arrays.items()}
        terminated = bool(steps and np.asarray(episode.terminations)[-1])
        trajectories.append(_episode(len(trajectories), observations, actions, hidden, terminated=terminated))
    return check_trajectories(trajectories)


def _load_minari(name: str) -> Any:
    minari = _import_minari()
    try:
        return minari.load_dataset(name)
    except (OSError, ValueError) as cause:
        raise DataError(
            f"no Minari dataset {name!r} on this machine ({cause}). Fetch it with: minari download {name}"
        ) from None


def _without_filling(values: np.ndarray, steps: int) -> np.ndarray:
    """A hidden variable without the last value that :func:`to_minari` adds to one that was recorded per action."""
    return values[:steps] if values.shape[:1] == (steps + 1,) and np.isnan(values[steps]).all() else values


def to_minari(
    trajectories: Iterable[Trajectory], dataset_id: str, *, env: Any = None, **facts: Any
) -> "minari.MinariDataset":
    """Write trajectories as a Minari dataset, rewards unknown (NaN). ``facts`` (author, ...) go to Minari."""
    minari = _import_minari()
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer

    found = check_trajectories(trajectories)
    buffers = []
    for number, t in enumerate(found):
        n = len(t)
        # Minari wants one value per observation; a variable that was recorded per action ends with NaN.
        hidden = {
            name: v if len(v) == n + 1 else np.concatenate([v, np.full((1, *v.shape[1:]), np.nan)])
            for name, v in t.hidden.items()
        }
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=list(t.observations),
                actions=list(t.actions),
                rewards=[float("nan")] * n,
                terminations=[False] * (n - 1) + [t.terminated],
                truncations=[False] * (n - 1) + [not t.terminated],
                infos={"hidden": hidden} if hidden else None,
            )
        )
    facts.setdefault("author", "prudent")
    facts.setdefault("author_email", "unknown")
    facts.setdefault("code_permalink", "unknown")
    facts.setdefault("algorithm_name", "demonstrations")
    if env is None:
        facts["observation_space"] = Box(-np.inf, np.inf, found[0].observations.shape[1:], np.float64)
    # Recorded actions carry noise, so the environment's own bounds do not hold for them.
    facts["action_space"] = Box(-np.inf, np.inf, found[0].actions.shape[1:], np.float64)
    return minari.create_dataset_from_buffers(dataset_id, buffers, env=env, **facts)


def save_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> Path:
    """Write trajectories to one ``.npz`` file of plain arrays."""
    found = check_trajectories(trajectories)
    path = Path(path)
    if path.suffix != ".npz":
        raise DataError(f"trajectories are saved as .npz, got {path.name!r}.")
    arrays: dict[str, Any] = {"lengths": np.array([len(t) for t in found])}
    arrays["terminated"] = np.array([t.terminated for t in found])
    arrays["observations"] = np.concatenate([t.observations for t in found])
    arrays["actions"] = np.concatenate([t.actions for t in found])
    for name in sorted({name for t in found for name in t.hidden}):
        extra = {len(t.hidden[name]) - len(t) if name in t.hidden else None for t in found}
        if extra not in ({0}, {1}):
            raise DataError(f"hidden variable {name!r} must be recorded alike in all episodes to be saved.")
        arrays[f"hidden.{name}"] = np.concatenate([t.hidden[name] for t in found])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)
    except OSError as cause:
        raise DataError(f"{path} cannot be written ({cause.strerror or cause}). Choose another place.") from None
    return path


def load_trajectories(path: str | Path) -> list[Trajectory]:
    """Read what :func:`save_trajectories` wrote; nothing is unpickled."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} is not a file. Give an .npz of demonstrations, written by save_trajectories.")
    try:
        # Opened here, because NumPy leaves a damaged file open.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: np.atleast_1d(file[name]) for name in file.files}
        lengths = arrays.pop("lengths").astype(int)
        observations, actions = arrays.pop("observations"), arrays.pop("actions")
    except (ValueError, TypeError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as cause:
        # NumPy takes anything else for a pickle, and says how to load one.
        reason = "it is damaged, or no .npz file of arrays"
        if isinstance(cause, KeyError):
            reason = f"{cause} is missing"
        elif isinstance(cause, OSError) and cause.strerror:
            reason = cause.strerror.lower()
        raise DataError(
            f"{path} does not hold demonstrations: {reason}. It needs the arrays lengths, observations and actions; "
            "write it with save_trajectories."
        ) from None
    hidden = {name.removeprefix("hidden."): values for name, values in arrays.items() if name.startswith("hidden.")}
    if len(actions) != lengths.sum() or len(observations) != (lengths + 1).sum():
        raise DataError(
            f"{path} is inconsistent: lengths add up to {lengths.sum()}, but there are {len(actions)} actions and "
            f"{len(observations)} observations of {len(lengths)} episodes. Write it with save_trajectories."
        )
    by_action, by_observation = np.cumsum(lengths)[:-1], np.cumsum(lengths + 1)[:-1]
    parts = {
        name: np.split(values, by_action if len(values) == lengths.sum() else by_observation)
        for name, values in hidden.items()
    }
    return from_arrays(
        np.split(observations, by_observation),
        np.split(actions, by_action),
        hidden=parts,
        terminated=list(arrays["terminated"]) if "terminated" in arrays else None,
    )


def _import_minari() -> Any:
    try:
        import minari
    except ImportError:
        raise DataError("Minari is not installed. Install it with: pip install 'prudent[minari]'") from None
    return minari
