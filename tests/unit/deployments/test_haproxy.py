"""The script that stands for HAProxy's binary."""

import subprocess
from pathlib import Path

from deployments.haproxy import CLOSE, write_script

CONFIG = """defaults
    mode http
    timeout connect 1s
    timeout client 1s
    timeout server 1s
frontend http_frontend
    bind 127.0.0.1:1
"""


def test_it_changes_the_configuration_and_runs_haproxy(tmp_path: Path) -> None:
    config = tmp_path / "with space.cfg"
    config.write_text(CONFIG)
    done = subprocess.run([write_script(tmp_path), "-c", "-f", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert config.read_text() == CONFIG.replace("http_frontend\n", f"http_frontend\n    {CLOSE}\n")
