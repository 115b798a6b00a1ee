"""The first process of a container: makes its file system, then becomes its command.

`unshare` has given it namespaces of its own. The file system is the machine's, read-only, with the container's own
/app, /tmp, /etc and volumes.

python container_entry.py SPEC.json      the fields of `tests.support.cluster.container.Spec`
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PRIVATE = ("tmp", "etc", "proc", "app", "run", "old_root", "lost+found")
"""Folders of the machine that a container replaces with its own or does not see."""


def main(spec: dict[str, Any]) -> None:
    root = Path(spec["root"])
    _mount("--make-rprivate", "/")
    _mount("-t", "tmpfs", "-o", "mode=755", "container", str(root))
    targets = [root / path.lstrip("/") for path in spec["code"] | spec["mounts"]]
    for entry in sorted(Path("/").iterdir()):
        if entry.name not in PRIVATE:
            _expose(entry, root / entry.name, targets)
    for name in ("proc", "app", "run"):
        (root / name).mkdir(exist_ok=True)
    shutil.copytree("/etc", root / "etc", symlinks=True)
    with (root / "etc/hosts").open("a") as hosts:
        hosts.writelines(f"{address} {name}\n" for name, address in spec["hosts"].items())
    _mount("-t", "proc", "proc", str(root / "proc"))
    _mount("-t", "tmpfs", "-o", f"size={spec['shm']}", "shm", str(root / "dev/shm"))
    for target_path, source in (spec["code"] | spec["mounts"]).items():
        place = _inside(root, target_path)
        if Path(source).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        _mount("--bind", source, str(place))
        if target_path in spec["code"]:
            _mount("-o", "remount,bind,ro", str(place))
    subprocess.run(["hostname", spec["name"]], check=True)
    os.chroot(root)
    os.chdir(spec["directory"])
    building = {"PATH": spec["environment"]["PATH"], "PYTHONPATH": "/app"}
    for command in spec["setup"]:
        subprocess.run(command, check=True, env=building, stdout=subprocess.DEVNULL)
    os.execve(spec["command"][0], spec["command"], spec["environment"])


def _inside(root: Path, path: str) -> Path:
    """The place of the container's `path`, with links resolved inside the container."""
    place = root
    for part in Path(path).parts[1:]:
        place = place / part
        if place.is_symlink():
            link = place.readlink()
            place = _inside(root, str(link)) if link.is_absolute() else place.parent / link
    return place


def _expose(source: Path, place: Path, targets: list[Path]) -> None:
    """Shows `source` at `place`, read-only. A folder into which something is to be mounted is a new one."""
    if source.is_symlink():
        place.symlink_to(source.readlink())
    elif source.is_dir() and any(place in target.parents for target in targets):
        place.mkdir()
        for entry in source.iterdir():
            _expose(entry, place / entry.name, targets)
    elif source.is_dir():
        place.mkdir()
        _mount("--rbind", str(source), str(place))
        if source.name not in ("dev", "sys"):
            _mount("-o", "remount,bind,ro", str(place))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
