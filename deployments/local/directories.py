"""Where a local run keeps its record and the prepared models: in the checkout, else in the current directory."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The directory that `app` and `deployments` are imported from."""


def home() -> Path:
    """The checkout that this code belongs to; an installed copy has none and uses the current directory."""
    return ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()


def models_directory() -> Path:
    """Where prepared models are kept, unless SWITCHYARD_MODELS says otherwise."""
    return home() / ".models"
