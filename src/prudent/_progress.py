"""Progress bars on the terminal, silent elsewhere."""

import sys
from types import TracebackType


class Progress:
    """A context that shows one Rich bar per running task on standard error; nothing when that is not a terminal."""

    def __init__(self, show: bool | None = None):
        self.show = sys.stderr.isatty() if show is None else show
        self._bars = None

    def __enter__(self) -> "Progress":
        if self.show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            self._bars = Bars(
                TextColumn("{task.description:<24}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def start(self, label: str, total: int) -> "Task":
        """A new bar of ``total`` steps."""
        return Task(self._bars, None if self._bars is None else self._bars.add_task(label, total=total, note=""))


class Task:
    """One bar."""

    def __init__(self, bars, number):
        self._bars, self._number = bars, number

    def advance(self, note: str = "", *, steps: int = 1) -> None:
        """One step further, or several."""
        if self._bars is not None:
            self._bars.update(self._number, advance=steps, note=note)

    def finish(self) -> None:
        """Fill the bar: early stopping ends a task before its last step."""
        if self._bars is not None:
            total = self._bars.tasks[self._number].total
            self._bars.update(self._number, completed=total)
