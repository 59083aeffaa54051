"""Saved models: a folder with ``model.json`` and ``weights.safetensors``. Loading one never runs its code."""

import hashlib
import json
import os
import shutil
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
KINDS = {"IVRegression": "prudent.iv"}


def save_model(folder: str | Path, kind: str, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """Write a model; the folder appears whole or not at all. An earlier model there is replaced, anything else kept."""
    from safetensors.numpy import save

    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / JSON_NAME).exists())):
        raise ModelFileError(
            f"{folder} exists and is not a saved model. Choose a new or empty folder, so that nothing is lost."
        )
    weights = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "prudent": __version__,
        "kind": kind,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    text = json.dumps({**header, "model": record}, indent=1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (fresh / WEIGHTS_NAME).write_bytes(weights)
        (fresh / JSON_NAME).write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
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
        raise ModelFileError(
            f"{folder} does not hold a complete model ({type(cause).__name__}: {cause}). Save the model again."
        ) from cause


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
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder} was written by a newer Prudent ({header.get('prudent')}, format {version}); this is "
            f"{__version__} (format {FORMAT_VERSION}). Upgrade prudent to read it."
        )
    if header.get("kind") not in KINDS or not {"weights_sha256", "model"} <= header.keys():
        raise ModelFileError(f"{folder / JSON_NAME} is incomplete or of an unknown kind ({header.get('kind')!r}).")
    return header
