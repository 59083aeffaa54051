"""Saved models: a folder with ``model.json`` and ``weights.safetensors``. Loading one never runs its code."""

import contextlib
import hashlib
import json
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from prudent import __version__
from prudent.errors import ModelFileError

FORMAT = "prudent-model"
FORMAT_VERSION = 1
JSON_NAME, WEIGHTS_NAME = "model.json", "weights.safetensors"
# Only these names are looked up for what a file says it is.
KINDS = {
    "BehaviourCloning": "prudent.imitation",
    "CEVAE": "prudent.proximal",
    "CausalImitation": "prudent.imitation",
    "Expert": "prudent.envs",
    "IVRegression": "prudent.iv",
    "PKDR": "prudent.proximal",
    "PlainRegression": "prudent.proximal",
    "ProximalRegression": "prudent.proximal",
    "ResiduIL": "prudent.imitation",
    "SequenceCloning": "prudent.imitation",
}


def check_folder(folder: str | Path, kind: str | None = None) -> Path:
    """``folder`` if a model may be written there: it is new, empty, or holds an earlier model of ours.

    With a ``kind``, an earlier model must be of the same part of the library: what one command wrote, another does not
    replace.
    """
    folder = Path(folder)
    # Path.exists raises where os.path.exists says no, at names that are too long, for one.
    if os.path.exists(folder):
        if not folder.is_dir():
            raise ModelFileError(f"{folder} is a file, not a folder. Choose another name.")
        if any(folder.iterdir()):
            try:
                earlier = _read_header(folder)["kind"]
            except ModelFileError:
                raise ModelFileError(
                    f"{folder} exists and is not a saved model. Choose a new or empty folder, so that nothing is lost."
                ) from None
            if kind is not None and KINDS[earlier] != KINDS[kind]:
                raise ModelFileError(
                    f"{folder} holds another kind of model ({earlier}, not {kind}). Choose a new or empty folder, so "
                    "that nothing is lost."
                )
    # Only trying tells, and better before a long fit than after it.
    absent = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as cause:
        raise _cannot_write(folder, cause) from None
    finally:
        for place in absent:
            with contextlib.suppress(OSError):
                place.rmdir()
    return folder


def _cannot_write(folder: Path, cause: OSError) -> ModelFileError:
    reason = (cause.strerror or str(cause)).lower()
    return ModelFileError(f"{folder} cannot be created or written to ({reason}). Choose a folder where you may write.")


def save_model(folder: str | Path, kind: str, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """Write a model. An earlier model there is replaced file by file; other files in the folder are left alone.

    The weights come first and the JSON, which holds their checksum, last: a reader never takes a half-written pair
    for a model.
    """
    from safetensors.numpy import save

    folder = check_folder(folder, kind)
    weights = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "prudent": __version__,
        "kind": kind,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    text = json.dumps({**header, "model": record}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in ((WEIGHTS_NAME, weights), (JSON_NAME, text.encode())):
            fresh = folder / f".{name}.new"
            try:
                fresh.write_bytes(content)
                os.replace(fresh, folder / name)
            finally:
                fresh.unlink(missing_ok=True)
    except OSError as cause:
        raise _cannot_write(folder, cause) from None
    return folder


def load(folder: str | Path) -> Any:
    """Read a model that was written with ``save``.

    Raises
    ------
    ModelFileError
        If the folder is absent, damaged, or was written by a newer version.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as load_weights

    folder = Path(folder)
    if not folder.is_dir():
        raise ModelFileError(f"{folder} is not a folder. Give the folder that was passed to save().")
    header = _read_header(folder)
    try:
        weights = (folder / WEIGHTS_NAME).read_bytes()
    except OSError:
        raise ModelFileError(f"{folder} has no readable {WEIGHTS_NAME}. Copy the whole folder again.") from None
    if hashlib.sha256(weights).hexdigest() != header["weights_sha256"]:
        raise ModelFileError(f"{folder / WEIGHTS_NAME} is damaged or truncated (checksum differs). Copy it again.")
    try:
        arrays = load_weights(weights)
        return getattr(import_module(KINDS[header["kind"]]), header["kind"]).from_state(header["model"], arrays)
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as cause:
        reason = f"{cause} is missing" if isinstance(cause, KeyError) else str(cause)
        raise ModelFileError(f"{folder} does not hold a complete model: {reason}. Save the model again.") from cause


def _read_header(folder: Path) -> dict[str, Any]:
    try:
        header = json.loads((folder / JSON_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{folder} has no {JSON_NAME}. Give the folder that was passed to save().") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as cause:
        raise ModelFileError(f"{folder / JSON_NAME} is damaged or truncated ({cause}). Copy it again.") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelFileError(f"{folder / JSON_NAME} is not a Prudent model. Give the folder that was passed to save().")
    version = header.get("format_version")
    if not isinstance(version, int):
        raise ModelFileError(f"{folder / JSON_NAME} does not name its format version. Save the model again.")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder} was written by a newer Prudent ({header.get('prudent')}, format {version}); this is "
            f"{__version__} (format {FORMAT_VERSION}). Upgrade prudent to read it."
        )
    if header.get("kind") not in KINDS or not {"weights_sha256", "model"} <= header.keys():
        lacks = sorted({"kind", "weights_sha256", "model"} - header.keys())
        what = f"lacks {', '.join(lacks)}" if lacks else f"is of an unknown kind ({header['kind']!r})"
        raise ModelFileError(f"{folder / JSON_NAME} {what}. Upgrade prudent, or save the model again.")
    return header
