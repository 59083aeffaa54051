"""Where a picture is drawn."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes_or_new(ax: Any) -> "Axes":
    """``ax`` if it is a Matplotlib axes, new ones for None."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if ax is None:
        return plt.subplots(figsize=(6, 4), layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise TypeError(
            f"ax must be Matplotlib axes, got {ax!r}. To write a file: plot_effect().figure.savefig('effect.png')."
        )
    return ax
