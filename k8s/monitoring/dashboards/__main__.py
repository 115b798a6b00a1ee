"""Writes the dashboards: `python -m k8s.monitoring.dashboards DIRECTORY`."""

import sys
from pathlib import Path

from k8s.monitoring.dashboards.files import files

if __name__ == "__main__":
    for name, text in files().items():
        (Path(sys.argv[1]) / name).write_text(text)
