"""One JSON line per event, appended so that neither SIGKILL nor a second writer can damage the file."""

import fcntl
import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

_FIELDS = {
    "plan": {"command", "experiment"},
    "run": {"key", "definition", "method", "final", "status", "worker_lost", "commit"},
}


class RecordFile:
    """A file of JSON lines that any number of processes append to and read."""

    def __init__(self, path: Path):
        self.path = path
        self._offset = 0

    def append(self, entry: Entry) -> None:
        """Append one line durably; on return it is on the disk, on an exception the file is as before."""
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            end = _drop_torn_line(fd)
            try:
                if os.write(fd, line) < len(line):
                    raise OSError(f"short write to {self.path}: is the disk full?")
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, end)
                raise
        finally:
            os.close(fd)  # also releases the lock

    def read_new(self) -> list[Entry]:
        """Entries completed since the last call (all of them at the first)."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        # What follows the last newline is being written now, or was torn by a kill; the next append removes it then.
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        entries = []
        for line in complete.splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                warnings.warn(f"{self.path} has a line that is not JSON; it is skipped: {line[:60]!r}", stacklevel=2)
        return entries

    def read_records(self) -> list[Entry]:
        """As `read_new`: plans and runs only. Anything else is skipped with a warning."""
        records = []
        for entry in self.read_new():
            kind = entry.get("kind") if isinstance(entry, dict) else None
            if kind in _FIELDS and entry.keys() >= _FIELDS[kind]:
                records.append(entry)
            else:
                shown = json.dumps(entry)[:60]
                warnings.warn(f"{self.path} has a line that is no record; it is skipped: {shown}", stacklevel=2)
        return records


class Claims:
    """Rights to run cells, held by this process and dropped by the system when it dies.

    A claim is a POSIX lock on one byte of a shared file, at an offset hashed from the cell. The file is opened once:
    closing any descriptor of it would drop all locks of the process.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def take(self, key: str) -> bool:
        """Claim a cell unless another process holds it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte_of(key))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def drop(self, key: str) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _byte_of(key))

    def close(self) -> None:
        os.close(self._fd)


def best_results(entries: list[Entry]) -> dict[str, Entry]:
    """One entry per cell key: the first success, or the last error when there is none."""
    results: dict[str, Entry] = {}
    for entry in entries:
        known = results.get(entry["key"])
        if known is None or known["status"] != "ok":
            results[entry["key"]] = entry
    return results


def _byte_of(key: str) -> int:
    # 62 bits: offsets must fit a signed 64-bit integer.
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 2


def _drop_torn_line(fd: int) -> int:
    """Cut an unfinished last line, left by a killed writer; returns the end of the file. Needs the lock."""
    end = os.fstat(fd).st_size
    if end == 0 or os.pread(fd, 1, end - 1) == b"\n":
        return end
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        end = file.read().rfind(b"\n") + 1
    os.ftruncate(fd, end)
    return end
