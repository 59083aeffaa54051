"""JAX's on-disk compilation cache: the second run of a program starts at once."""

import functools
import os
from pathlib import Path

OFF = {"0", "off", "no", "false"}


@functools.cache
def enable_compilation_cache() -> Path | None:
    """Keep compiled programs in the user's cache folder; ``PRUDENT_COMPILATION_CACHE`` names another one or is ``off``.

    A cache that the user has configured for JAX itself is left as it is.
    """
    import jax
    import platformdirs

    setting = os.environ.get("PRUDENT_COMPILATION_CACHE", "")
    if setting.lower() in OFF:
        return None
    configured = getattr(jax.config, "jax_compilation_cache_dir", None)
    if configured:
        return Path(configured)
    folder = Path(setting) if setting else Path(platformdirs.user_cache_dir("prudent")) / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # A read-only home costs compile time, not the fit.
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs, too: a fit has more than a hundred, and compiles them for several seconds in all.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return folder
