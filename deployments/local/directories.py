"""The directories of a local run's record and the prepared models: in the checkout, else in the current directory."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The directory that `app` and `deployments` are imported from."""


def home() -> Path:
    """The checkout that this code belongs to; an installed copy has none and uses the current directory."""
    return ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()


def models_directory() -> Path:
    """The directory of prepared models, unless SWITCHYARD_MODELS sets another."""
    return home() / ".models"
