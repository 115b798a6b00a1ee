"""Whatever is fetched from elsewhere is named by its content: packages by hash, images by digest, actions by commit."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.kubernetes.dockerfile import stages
from tests.support.kubernetes.overlays import OVERLAYS, pods, rendered
from tests.support.processes.project import ROOT

LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda file: file.name)
def test_every_package_of_a_lock_has_its_hashes(lock: Path) -> None:
    packages = re.split(r"^(?=\S)", lock.read_text().replace("\\\n", ""), flags=re.MULTILINE)
    pinned = [package for package in packages if "==" in package.partition("\n")[0]]
    assert len(pinned) > (0 if lock.stem in ("helm", "proxies") else 5)
    assert [line.split()[0] for line in pinned if not re.search(r"--hash=sha256:[0-9a-f]{64}", line)] == []


def test_every_installation_from_a_lock_checks_them() -> None:
    install = (ROOT / "requirements/install").read_text()
    syncs = [
        line for line in (install + (ROOT / "Makefile").read_text()).splitlines() if re.search(r"\bsync\b.*-", line)
    ]
    assert len(syncs) >= 3
    assert [line for line in syncs if "--require-hashes" not in line] == []


def test_an_image_has_no_package_without_a_hash() -> None:
    """uv checks the hashes of constraints, too: every package of an image is one of its lock."""
    for stage in stages(ROOT / "k8s/Dockerfile").values():
        for step in stage.all("RUN"):
            if "pip install -r" in step:
                assert re.search(r"--constraint requirements/(cpu|gpu)\.lock", step), step


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_every_action_is_named_by_its_commit_and_gets_no_more_rights_than_it_needs(workflow: Path) -> None:
    document = yaml.safe_load(workflow.read_text())
    assert document["permissions"] == {"contents": "read"}
    uses = re.findall(r"uses: (.*)", workflow.read_text())
    assert uses
    assert [use for use in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_every_step_of_a_workflow_is_a_shell_script_whose_targets_the_makefile_has(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    scripts = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert scripts
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        assert set(re.findall(r"^make ([a-z-]+)", script, flags=re.MULTILINE)) <= targets


def test_every_image_that_is_not_built_here_is_named_by_its_digest() -> None:
    built = stages(ROOT / "k8s/Dockerfile")
    bases = {stage.base for stage in built.values()} - {*built, "$BASE"}  # test_dockerfile.py has the digest
    images = {
        container["image"] for overlay in OVERLAYS for pod in pods(rendered(overlay)) for container in pod.containers
    }
    foreign = bases | {image for image in images if not image.startswith("switchyard:")}
    assert foreign
    assert [image for image in foreign if not DIGEST.search(image)] == []
