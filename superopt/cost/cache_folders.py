"""The folders and files that superopt keeps on disk."""

import os
import sys
from pathlib import Path

STORE_FILE_NAME = "costs.sqlite3"


def default_folder() -> Path:
    """Return $SUPEROPT_CACHE, else the user's cache folder of the system."""
    named = os.environ.get("SUPEROPT_CACHE")
    return Path(named) if named else user_cache_folder()


if sys.platform == "linux":  # importing platformdirs takes 20 ms, a quarter of a cached start

    def user_cache_folder() -> Path:
        """Return superopt's cache folder of this user, equal to that of platformdirs."""
        home = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache")
        return Path(home) / "superopt"

else:
    import platformdirs

    def user_cache_folder() -> Path:
        """Return superopt's cache folder of this user."""
        return Path(platformdirs.user_cache_dir("superopt", appauthor=False))


def constants_folder() -> Path:
    """Return the folder of packed constants."""
    return default_folder() / "constants"


def objects_folder() -> Path:
    """Return the folder of object files."""
    return default_folder() / "objects"


def ready_folder() -> Path:
    """Return the folder of descriptions of models and their programs."""
    return default_folder() / "ready"


def rules_folder() -> Path:
    """Return the folder of the parsed rule library."""
    return default_folder() / "rules"


def store_path(path: Path | str | None) -> Path:
    """Return the file of the store at `path`: a file, a folder that contains one, or the
    default."""
    place = default_folder() if path is None else Path(path)
    return place / STORE_FILE_NAME if path is None or os.path.isdir(place) else place
