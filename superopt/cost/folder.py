"""Where superopt keeps what it measured and made."""

import os
from pathlib import Path

import platformdirs

FILE = "costs.sqlite3"


def default_folder() -> Path:
    """Where the store lies: $SUPEROPT_CACHE, else the user's cache folder of the system."""
    named = os.environ.get("SUPEROPT_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("superopt", appauthor=False))


def constants_folder() -> Path:
    """Where packed constants lie."""
    return default_folder() / "constants"


def objects_folder() -> Path:
    """Where object files lie."""
    return default_folder() / "objects"


def ready_folder() -> Path:
    """Where descriptions of models and of their programs lie."""
    return default_folder() / "ready"


def rules_folder() -> Path:
    """Where the parsed rule library lies."""
    return default_folder() / "rules"


def store_file(path: Path | str | None) -> Path:
    """The store at `path`: a file, a folder that holds one, or the default."""
    place = default_folder() if path is None else Path(path)
    return place / FILE if path is None or os.path.isdir(place) else place
