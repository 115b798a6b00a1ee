"""The whole application on this machine: Ray, Serve, HAProxy, the engines, the router, in one foreground run.

Top to bottom: check the configuration, prepare the weights, start Ray and Serve on loopback, deploy, wait
until everything answers, wait for a signal, stop everything. Ray reads its environment when it is imported,
so this file imports it inside functions, after the environment is set. Signals only set an event: nothing
interrupts the sweep, a second signal least of all.
"""

import contextlib
import http.client
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import yaml

from app.config.serve_file import check_file, host_of
from app.config.urls import is_loopback
from app.internal_api import INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE, MODELS_VARIABLE, PACKAGE_PREFIX
from deployments.draining import KEEP_ALIVE_S
from deployments.local import processes as leftovers
from deployments.local.environment import HOST, authenticate, free_ports, is_free, set_environment

T = TypeVar("T")

READY_S = 900.0
"""How long the applications may take to come up."""

UNHEALTHY_S = 60.0
"""How long one may be unhealthy before the start is given up."""

SHUTDOWN_S = 60.0
"""How long requests under way and Serve may take to end by themselves; the sweep ends what is left."""

EVERYWHERE = "0.0.0.0"
"""All interfaces, and no single other one: the router finds the models on loopback, through the same port."""

LOGICAL_CPUS = 16
"""Ray's bookkeeping, not cores: replicas that wait for tokens share the machine."""

OBJECT_STORE_BYTES = 128 * 1024 * 1024
"""Small: the data plane is HTTP, no payload goes through the object store."""


class Failure(Exception):
    """The start is given up; the text tells the user why and what to do."""


class Stopped(Exception):
    """A signal came while starting."""


def serve(config: Path, port: int) -> int:
    """Runs `config` on `port` until a signal; returns the exit status."""
    directory = leftovers.run_directory()
    try:
        problems = check_file(config)
        if problems:
            raise Failure("\n".join([f"{config} is wrong:", *problems]))
        with leftovers.exclusive(directory), _signals() as stop:
            leftovers.clean(directory)
            _run(yaml.safe_load(config.read_text()), port, directory, stop)
    except leftovers.AlreadyRunning:
        other = leftovers.record(directory)
        where = f" on port {other.port} (pid {other.pid})" if other else ""
        _say(f"Another instance already runs from this checkout{where}. Stop it with: python -m deployments stop")
        return 1
    except Failure as failure:
        _say(str(failure))
        return 1
    return 0


def deploy(config: Path) -> int:
    """Delivers `config` to the run of this checkout, live; returns the exit status. A wrong one is not sent."""
    run = leftovers.record(leftovers.run_directory())
    problems = check_file(config)
    if run is None:
        _say("Nothing is running: make serve")
        return 1
    if problems:
        _say("\n".join([f"{config} is wrong, nothing is changed:", *problems]))
        return 1
    authenticate(run)
    try:
        document = yaml.safe_load(config.read_text())
        _deploy(run.dashboard, {**document, "http_options": _http_options(document, run.port)})
    except Failure as failure:
        _say(str(failure))
        return 1
    _say("Delivered: traffic follows within seconds; replicas whose `args` changed are replaced one by one.")
    return 0


def stop() -> int:
    """Stops the run of this checkout, or what a killed one left; returns the exit status."""
    _say(leftovers.stop(leftovers.run_directory()))
    return 0


def _run(document: Mapping[str, Any], port: int, directory: Path, stop: threading.Event) -> None:
    if not is_free(port):
        raise Failure(
            f"Port {port} is taken by another program. Choose another: --port {port + 1}, or make serve PORT={port + 1}"
        )
    host = _host(document)
    files = Path(tempfile.mkdtemp(prefix="switchyard-", dir="/tmp"))
    ports = free_ports(port)
    run = leftovers.Run(
        pid=os.getpid(),
        run_id=str(uuid.uuid4()),
        port=port,
        dashboard=f"http://{HOST}:{ports.dashboard}",
        directory=str(files),
    )
    set_environment(run, ports, loopback=host == HOST)
    failed = True
    try:
        with contextlib.suppress(Stopped):
            _prepare_weights(document, stop)
            leftovers.write_record(directory, run)
            with _output_to(files / "launcher.log"):
                _start(document, run, stop)
                _ready(document, run)
                stop.wait()
        failed = False
    finally:
        with _output_to(files / "launcher.log"):
            _shut_down(run, _routers(document), stop)
        (directory / "local.json").unlink(missing_ok=True)
        if failed:
            _say(f"The logs are kept: {files}/ray/session_latest/logs")
        else:
            shutil.rmtree(files, ignore_errors=True)


def _start(document: Mapping[str, Any], run: leftovers.Run, stop: threading.Event) -> None:
    _say(f"Starting Ray (logs: {run.directory}/ray/session_latest/logs)")
    _start_ray(run, stop)
    _check(stop)
    options = _http_options(document, run.port)
    _in_background(partial(_start_serve, options), stop)
    _in_background(partial(_deploy, run.dashboard, {**document, "http_options": options}), stop)
    _wait_until_running(stop)
    _wait_until_answering(document, run.port, stop)


def _prepare_weights(document: Mapping[str, Any], stop: threading.Event) -> None:
    names = dict.fromkeys(_packages(document))
    if not names:
        return
    from deployments.weights.cache import prepare
    from deployments.weights.errors import WeightsError

    cache = Path(os.environ[MODELS_VARIABLE])
    for name in names:
        try:
            _in_background(partial(prepare, name, cache), stop)
        except WeightsError as error:
            raise Failure(str(error)) from None


def _host(document: Mapping[str, Any]) -> str:
    """Where the application listens. That others than this machine may reach it has been checked by then."""
    wanted = host_of(document)
    if is_loopback(wanted):
        return HOST
    if wanted != EVERYWHERE:
        raise Failure(f"http_options.host: '{wanted}': a local run listens on {HOST} or on {EVERYWHERE}")
    return wanted


def _http_options(document: Mapping[str, Any], port: int) -> dict[str, Any]:
    return {"host": _host(document), "port": port, "keep_alive_timeout_s": KEEP_ALIVE_S}


def _packages(document: Mapping[str, Any]) -> Iterator[str]:
    for application in document.get("applications") or []:
        config = (application.get("args") or {}).get("llm_config") or {}
        source = (config.get("model_loading_config") or {}).get("model_source")
        if isinstance(source, str) and source.startswith(PACKAGE_PREFIX):
            yield source.removeprefix(PACKAGE_PREFIX)


def _start_ray(run: leftovers.Run, stop: threading.Event) -> None:
    import ray

    try:
        ray.init(
            address="local",
            num_cpus=LOGICAL_CPUS,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=True,
            dashboard_host=HOST,
            dashboard_port=int(run.dashboard.rpartition(":")[2]),
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address=HOST,  # replicas listen on loopback, so HAProxy must look for them there
            _temp_dir=f"{run.directory}/ray",
        )
    except SystemExit:  # a SIGTERM while Ray's own handler was installed
        stop.set()
    finally:
        _handle_signals(stop)  # ray.init replaces the handlers


def _start_serve(options: Mapping[str, Any]) -> None:
    from ray import serve as ray_serve

    ray_serve.start(http_options=options)


def _deploy(dashboard: str, document: Mapping[str, Any]) -> None:
    """The same call that `serve deploy` makes (with Ray's token), so that a later one changes this run."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    try:
        ServeSubmissionClient(dashboard).deploy_applications(dict(document))
    except RuntimeError as error:  # how this client says that the answer was not 200
        raise Failure(f"Serve refused the configuration: {error}") from None


def _wait_until_running(stop: threading.Event) -> None:
    from ray import serve as ray_serve

    deadline = time.monotonic() + READY_S
    unhealthy_since: dict[str, float] = {}
    said = ""
    while True:
        applications = _in_background(ray_serve.status, stop).applications
        waiting = sorted(name for name, it in applications.items() if it.status != "RUNNING")
        if applications and not waiting:
            return
        for name in waiting:
            _give_up_if_failed(name, applications[name], unhealthy_since)
        line = f"Waiting for: {', '.join(waiting)}"
        if waiting and line != said:
            _say(line)
            said = line
        if time.monotonic() > deadline:
            raise Failure(f"Not ready after {READY_S:.0f} s: {', '.join(waiting)}")
        _check(stop, wait_s=0.5)


def _give_up_if_failed(name: str, application: Any, unhealthy_since: dict[str, float]) -> None:
    if application.status != "UNHEALTHY":
        unhealthy_since.pop(name, None)
    since = unhealthy_since.setdefault(name, time.monotonic()) if application.status == "UNHEALTHY" else None
    if application.status == "DEPLOY_FAILED" or (since is not None and time.monotonic() - since > UNHEALTHY_S):
        messages = [application.message, *(it.message for it in application.deployments.values())]
        text = "\n".join(dict.fromkeys(message for message in messages if message))
        raise Failure(f"Application '{name}' failed ({application.status}):\n{text}")


def _wait_until_answering(document: Mapping[str, Any], port: int, stop: threading.Event) -> None:
    """RUNNING is the replicas' word; HAProxy learns of them a moment later."""
    deadline = time.monotonic() + 60
    for application in document["applications"]:
        if not str(application.get("import_path")).startswith("deployments."):
            continue  # ours have /health; of others nothing is known
        prefix = str(application.get("route_prefix") or "/").rstrip("/")
        while not _in_background(partial(_answers, port, f"{prefix}/health"), stop):
            if time.monotonic() > deadline:
                raise Failure(f"{prefix or '/'} runs, but does not answer on port {port}")
            _check(stop, wait_s=0.1)


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path, headers={INTERNAL_KEY_HEADER: os.environ[INTERNAL_KEY_VARIABLE]})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _ready(document: Mapping[str, Any], run: leftovers.Run) -> None:
    if _host(document) == HOST:
        _say("It listens on the loopback interface only: `http_options: {host: 0.0.0.0}` opens it, given `access`")
    _say("To change it live, edit the configuration, then: make deploy")
    _write(sys.__stdout__, f"Switchyard is ready: http://{HOST}:{run.port}/v1")


def _routers(document: Mapping[str, Any]) -> list[str]:
    """The applications that clients reach."""
    applications = document.get("applications") or []
    return [it["name"] for it in applications if it.get("import_path") == "deployments.router:build"]


def _shut_down(run: leftovers.Run, routers: Sequence[str], stop: threading.Event) -> None:
    """Gently first, unless a second signal comes: the routers finish what they carry, then engines and HAProxy end in
    order. Then whatever still carries the marker."""
    if "ray" in sys.modules:
        _say("Stopping, once the requests under way have ended; a second signal stops at once")
        stop.clear()
        thread = threading.Thread(target=_stop_serve, args=(routers,), daemon=True)
        thread.start()
        deadline = time.monotonic() + SHUTDOWN_S
        while thread.is_alive() and time.monotonic() < deadline and not stop.wait(0.1):
            pass
        import ray

        ray.shutdown()
    leftovers.sweep(run.run_id)


def _stop_serve(routers: Sequence[str]) -> None:
    import ray
    from ray import serve as ray_serve

    with contextlib.suppress(Exception):  # whatever it was, the sweep follows
        if ray.is_initialized():
            for name in routers:
                ray_serve.delete(name)
            ray_serve.shutdown()


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    stop = threading.Event()
    _handle_signals(stop)
    yield stop


def _handle_signals(stop: threading.Event) -> None:
    """SIGINT too: a shell that starts a program with `&` has it ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())


def _check(stop: threading.Event, wait_s: float = 0.0) -> None:
    if stop.wait(wait_s):
        raise Stopped


def _in_background(work: Callable[[], T], stop: threading.Event) -> T:
    """The result of `work`; Stopped at once when a signal comes first."""
    future: Future[T] = Future()

    def fulfil() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (the caller gets it)
            future.set_exception(error)

    threading.Thread(target=fulfil, daemon=True).start()
    while not future.done():
        _check(stop)
        wait([future], timeout=0.1)
    return future.result()


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Ray and Serve talk to this process's terminal from threads of theirs: into a file with it."""
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def _say(line: str) -> None:
    _write(sys.__stderr__, line)


def _write(stream: TextIO | None, line: str) -> None:
    if stream is not None:
        with contextlib.suppress(OSError):  # the terminal may be gone; what runs is not
            stream.write(line + "\n")
            stream.flush()
