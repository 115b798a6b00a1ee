"""Workers that are forked from a template, with templates that import nothing: what counts is the process that comes
out. `tests/engine/test_fork.py` has the real imports, and `tests/real` the application."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engine import fork
from deployments.invocation import ROOT
from tests.support.waiting import wait_until

REPORT = """
import json, os, pathlib, signal, sys
print("ran", file=sys.stderr)
json.dump({
    "argv": sys.argv, "name": __name__, "path": sys.path, "environment": dict(os.environ), "directory": os.getcwd(),
    "input": sys.stdin.read(), "group": os.getpgid(0) == os.getpid(), "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    "oom": pathlib.Path("/proc/self/oom_score_adj").read_text(), "child": str(signal.getsignal(signal.SIGCHLD)),
    "umask": os.umask(0), "parent": os.getppid(),
    "files": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)),
}, sys.stdout)
sys.stdout.flush()
"""

ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8", "REMOVED": ""}

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@contextmanager
def template(directory: Path, *imports: str) -> Iterator[tuple[subprocess.Popen[bytes], list[str], dict[str, str]]]:
    """A template, with the script and the environment of its workers. Its raylet is a process that sleeps."""
    script = directory / "worker.py"
    script.write_text(REPORT)
    raylet = subprocess.Popen(["sleep", "600"])
    arguments = [str(script), f"--raylet-name={directory}/raylet"]
    environment = {**ENVIRONMENT, fork.RAYLET_PID: str(raylet.pid)}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(fork.address(arguments, environment)))
        listener.listen()
        command = [sys.executable, "-m", fork.MODULE, "--template", str(listener.fileno()), *imports]
        process = subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()])
    try:
        yield process, arguments, environment
    finally:
        raylet.kill()
        raylet.wait()
        process.wait(30)


def run(command: Sequence[str], environment: dict[str, str], directory: Path, given: str = "") -> dict[str, Any]:
    """What a worker reports that is started with `command`. It runs exactly once."""
    read, write = os.pipe()
    with open(read) as output, (directory / "errors").open("w+") as errors:
        subprocess.run(
            [sys.executable, *command],
            env=environment,
            cwd=directory,
            input=given.encode(),
            stdout=write,
            stderr=errors,
            check=True,
            preexec_fn=lambda: os.nice(3),
        )
        os.close(write)
        report: dict[str, Any] = json.load(output)  # until the worker ends, which may be later than the command
        errors.seek(0)
        assert errors.read().count("ran") == 1
        return report


@settings(max_examples=10, deadline=None)
@given(arguments=st.lists(texts, max_size=3), value=texts, given=texts)
def test_a_copy_is_what_the_worker_would_be(
    tmp_path_factory: pytest.TempPathFactory, arguments: list[str], value: str, given: str
) -> None:
    directory = tmp_path_factory.mktemp("raylet")
    with template(directory) as (process, own, environment):
        given_environment = {**environment, "VLLM_CPU_KVCACHE_SPACE": value}
        command = [*own, *arguments]
        copy = run(["-m", fork.MODULE, *command], given_environment, directory, given)
        assert copy.pop("parent") == process.pid
        plain = run(command, given_environment, directory, given)
        assert plain.pop("parent") == os.getpid()
        assert copy.pop("group")  # raylets start workers in groups of their own
        del plain["group"]
        # Two for each spare: where it is told what to run, and where one sees its end.
        assert len(copy.pop("files")) == len(plain.pop("files")) + 2 * fork.SPARES
        assert copy == plain


IDS = """
import json, threading
from ray import ObjectRef

ids = []
for _ in range(3):
    ids.append(ObjectRef.from_random().hex())  # by the generator of Ray's IDs of calls
    thread = threading.Thread(target=lambda: ids.append(ObjectRef.from_random().hex()))
    thread.start()
    thread.join()
print(json.dumps(ids))
"""


def test_no_two_copies_draw_the_same_id(tmp_path: Path) -> None:
    """In any thread. Ray Serve declares classes of actors, which have IDs."""
    with template(tmp_path, "ray.serve._private.replica") as (_, arguments, given):
        (tmp_path / "worker.py").write_text(IDS)
        drawn = []
        for _ in range(3):
            command = [sys.executable, "-m", fork.MODULE, *arguments]
            done = subprocess.run(command, env=given, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
            drawn += json.loads(done.stdout)
    assert len(set(drawn)) == len(drawn) == 18


def test_a_variable_that_the_template_has_and_the_worker_lacks(tmp_path: Path) -> None:
    with template(tmp_path) as (_, arguments, environment):
        place = fork.address(arguments, environment)
        lacking = {name: value for name, value in environment.items() if name != "REMOVED"}
        fork.address(arguments, lacking).symlink_to(place)
        assert "REMOVED" not in run(["-m", fork.MODULE, *arguments], lacking, tmp_path)["environment"]


@given(
    environment=st.dictionaries(st.sampled_from(["A", "OMP_NUM_THREADS", "RAY_JOB_ID", *fork.LATER]), texts),
    name=st.sampled_from(["A", "OMP_NUM_THREADS", "RAY_JOB_ID", *fork.LATER]),
    value=texts,
)
def test_a_template_serves_workers_of_its_environment(environment: dict[str, str], name: str, value: str) -> None:
    given_environment = {**environment, fork.RAYLET_PID: "1"}
    changed = {**given_environment, name: value}
    arguments = ["worker.py", "--raylet-name=/run/raylet"]
    is_same = name in fork.LATER or given_environment == changed
    assert (fork.address(arguments, given_environment) == fork.address(arguments, changed)) is is_same


def test_another_raylet_another_template() -> None:
    environment = {fork.RAYLET_PID: "1"}
    places = {fork.address([f"--raylet-name=/run/{name}"], environment) for name in ("raylet", "raylet.1")}
    assert len(places) == 2


def test_a_file_that_changes_ends_the_use_of_a_template(tmp_path: Path) -> None:
    for name in ("app/a.py", "deployments/engine/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    arguments, environment = ["--raylet-name=/run/raylet"], {fork.RAYLET_PID: "1"}
    before = fork.address(arguments, environment, tmp_path)
    assert fork.address(arguments, environment, tmp_path) == before
    os.utime(tmp_path / "app/a.py", (time.time() + 10, time.time() + 10))
    assert fork.address(arguments, environment, tmp_path) != before


def test_names_are_as_short_as_rays_own() -> None:
    place = fork.address(["--raylet-name=/run/raylet"], {fork.RAYLET_PID: "1"})
    assert len(place.name) <= len("plasma_store")


@pytest.mark.parametrize("is_there", [True, False])
def test_rays_command_finds_python(tmp_path: Path, is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the node has it: a path may have spaces."""
    own = tmp_path / "a folder" / "python"
    own.parent.mkdir()
    if is_there:
        own.symlink_to(sys.executable)
    (tmp_path / "worker.py").write_text("print('ran')")
    monkeypatch.setattr(sys, "executable", str(own))
    command = ["bash", "-c", f"exec {fork.py_executable()} {tmp_path / 'worker.py'}"]
    environment = {**ENVIRONMENT, "PATH": f"{Path(sys.prefix, 'bin')}:{ENVIRONMENT['PATH']}"}
    assert subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout == b"ran\n"


@pytest.mark.parametrize("lacks", ["raylet's name", "raylet's pid", "directory"])
def test_a_worker_without_a_template_starts_by_itself(tmp_path: Path, lacks: str) -> None:
    (tmp_path / "worker.py").write_text(REPORT)
    raylet = "/nowhere/raylet" if lacks == "directory" else tmp_path / "raylet"
    arguments = [str(tmp_path / "worker.py"), *([] if lacks == "raylet's name" else [f"--raylet-name={raylet}"])]
    environment = {**ENVIRONMENT, **({} if lacks == "raylet's pid" else {fork.RAYLET_PID: str(os.getpid())})}
    assert run(["-m", fork.MODULE, *arguments], environment, tmp_path)["parent"] == os.getpid()


def test_a_worker_whose_template_cannot_import_starts_by_itself(tmp_path: Path) -> None:
    with template(tmp_path, "no_such_module") as (process, arguments, environment):
        # Its connection is refused or reset, and nothing but this has a template start again.
        assert process.wait(30)
        with socket.socket(socket.AF_UNIX) as listener:
            place = fork.address(arguments, environment)
            place.unlink()
            listener.bind(str(place))
            listener.listen()
            command = [sys.executable, "-m", fork.MODULE, *arguments]
            worker = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            listener.accept()[0].close()
            assert json.loads(worker.communicate()[0])["parent"] == os.getpid()


def test_a_worker_waits_for_no_template_until_ray_gives_it_up(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(REPORT)
    arguments = [str(tmp_path / "worker.py"), f"--raylet-name={tmp_path}/raylet"]
    environment = {**ENVIRONMENT, fork.RAYLET_PID: str(os.getpid()), fork.REGISTER_S: "1"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(fork.address(arguments, environment)))
        listener.listen()
        assert run(["-m", fork.MODULE, *arguments], environment, tmp_path)["parent"] == os.getpid()


def test_a_template_outlives_a_worker_that_does_not_wait(tmp_path: Path) -> None:
    with template(tmp_path) as (process, arguments, environment):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(fork.address(arguments, environment)))
        assert run(["-m", fork.MODULE, *arguments], environment, tmp_path)["parent"] == process.pid


def test_a_template_ends_with_its_raylet(tmp_path: Path) -> None:
    with template(tmp_path) as (process, _, environment):
        os.kill(int(environment[fork.RAYLET_PID]), signal.SIGKILL)
        assert process.wait(30) == 0


def test_a_template_that_hangs_holds_up_no_worker_for_long(tmp_path: Path) -> None:
    with template(tmp_path) as (process, arguments, environment):
        assert run(["-m", fork.MODULE, *arguments], environment, tmp_path)["parent"] == process.pid
        process.send_signal(signal.SIGSTOP)
        assert run(["-m", fork.MODULE, *arguments], environment, tmp_path)["parent"] == os.getpid()
        process.send_signal(signal.SIGCONT)


IDLE = """
import os, socket, sys, time
from deployments.engine import fork
with fork.template(socket.socket(fileno=int(sys.argv[1])), os.getppid(), [], idle_s=1.0):
    time.sleep(4.0)
"""


def test_a_template_ends_some_time_after_its_last_copy(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "t"))
        listener.listen()
        command = [sys.executable, "-c", IDLE, str(listener.fileno())]
        process = subprocess.Popen(command, env=ENVIRONMENT, pass_fds=[listener.fileno()])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "t"))
        began = time.monotonic()
        assert process.wait(60) == 0
    assert time.monotonic() - began > 4.0
    assert not (tmp_path / "t").exists()


SPARE = """
import os, signal, socket, subprocess, sys, time
from multiprocessing import Pipe
from multiprocessing.connection import wait
from deployments.engine import fork

def end(code): sys.exit(code)
def say(connection): connection.send(os.environ["SAID"])
def echo(one, other):
    one.sendall(other.recv(10))
    time.sleep(600)
def sleep(): time.sleep(600)

if __name__ == "__main__":
    spare = fork.Spare()
    fork.Spare.waiting.append(spare)
    Process = fork.Context().Process
    os.environ["SAID"] = "after the fork"
"""


def with_spare(directory: Path, script: str) -> list[str]:
    """The lines that a process with a spare prints."""
    (directory / "spare.py").write_text(SPARE + "".join(f"    {line}\n" for line in script.splitlines()))
    command = [sys.executable, str(directory / "spare.py")]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def test_a_spare_runs_the_first_process_and_a_spawned_one_the_second(tmp_path: Path) -> None:
    script = """
for code in (7, 8):
    process = Process(target=end, args=(code,))
    process.start()
    print(process.pid == spare.pid, wait([process.sentinel], 30) == [process.sentinel], flush=True)
    process.join()
    print(process.exitcode, flush=True)
"""
    assert with_spare(tmp_path, script) == ["True True", "7", "False True", "8"]


def test_a_spare_is_given_files_and_a_spawned_process_too(tmp_path: Path) -> None:
    script = """
for _ in range(2):
    ours, theirs = Pipe()
    process = Process(target=say, args=(theirs,))
    process.start()
    theirs.close()
    print(process.pid == spare.pid, ours.recv(), flush=True)
    process.join()
"""
    assert with_spare(tmp_path, script) == ["True after the fork", "False after the fork"]


def test_what_runs_in_a_spare_is_ended_as_a_child_process_is(tmp_path: Path) -> None:
    script = """
pairs = [socket.socketpair() for _ in range(2)]
forked = fork.run_in_spare(echo, *(theirs for _, theirs in pairs))
pairs[1][0].sendall(b"heard")
print(forked.pid == spare.pid, pairs[0][0].recv(10).decode(), forked.poll(), flush=True)
try: forked.wait(0.01)
except subprocess.TimeoutExpired: print("goes on", flush=True)
forked.kill()
print(forked.wait(30) == forked.poll() == -signal.SIGKILL, fork.run_in_spare(sleep), flush=True)
"""
    assert with_spare(tmp_path, script) == ["True heard None", "goes on", "True None"]


def test_spares_that_are_not_needed_end(tmp_path: Path) -> None:
    script = """
other = fork.Spare()
fork.Spare.waiting.append(other)
Process(target=sleep, daemon=True).start()
fork.end_spares()
print(*(os.path.exists(f"/proc/{each.pid}") for each in (spare, other)), fork.run_in_spare(sleep), flush=True)
"""
    assert with_spare(tmp_path, script) == ["False True None"]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_spare_ends_with_its_process_however_that_ends(tmp_path: Path, is_running: bool) -> None:
    script = "Process(target=sleep).start()\n" if is_running else ""
    [pid] = with_spare(tmp_path, f"{script}print(spare.pid, flush=True)\nos._exit(0)\n")
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
