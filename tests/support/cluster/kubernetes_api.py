"""As much of a Kubernetes API as Ray's autoscaler uses: one RayCluster and its pods, over HTTPS.

Each write is checked against the schema of the custom resource. One that violates it is refused, as by a real server.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from tests.support.processes.certificates import certificate_for, server_context

Validate = Callable[[Mapping[str, Any]], Sequence[str]]
"""The problems of a RayCluster."""

PORT = 443


class RayClusterStore:
    """A RayCluster and a function that lists its pods; `writes` are the patches so far, (path, value), the oldest
    first."""

    def __init__(self, cluster: dict[str, Any], validate: Validate) -> None:
        self.lock = threading.RLock()
        self.writes: list[tuple[str, Any]] = []
        self.pods: Callable[[], Sequence[Mapping[str, Any]]] = list
        self._validate, self._version = validate, 1
        problems = validate(cluster)
        assert not problems, problems
        self.cluster = cluster
        self._stamp()

    def group(self, name: str) -> Any:
        """The worker group of that name."""
        return next(group for group in self.cluster["spec"]["workerGroupSpecs"] if group["groupName"] == name)

    def patch(self, operations: Sequence[Mapping[str, Any]]) -> list[str]:
        """Applies a JSON patch (RFC 6902: add, replace, remove) or returns what is wrong with the outcome."""
        with self.lock:
            changed = json.loads(json.dumps(self.cluster))
            for operation in operations:
                _apply(changed, operation)
            problems = list(self._validate(changed))
            if not problems:
                self.cluster = changed
                self.writes += [(operation["path"], operation.get("value")) for operation in operations]
                self._stamp()
            return problems

    def pod_list(self) -> dict[str, Any]:
        """Its pods, as the API lists them."""
        with self.lock:
            self._version += 1
            version = str(self._version)
            items = [{**pod, "metadata": {**pod["metadata"], "resourceVersion": version}} for pod in self.pods()]
            return {"metadata": {"resourceVersion": version}, "items": items}

    def _stamp(self) -> None:
        self._version += 1
        self.cluster["metadata"]["resourceVersion"] = str(self._version)


@contextmanager
def kubernetes_api(address: str, stores: Mapping[str, RayClusterStore], directory: Path) -> Iterator[Path]:
    """Serves the RayClusters, by name, at `address`; yields the path of the certificate."""
    certificate, key = certificate_for(address, directory)
    handler = type("Handler", (_Handler,), {"stores": stores})
    server = ThreadingHTTPServer((address, PORT), handler)
    context = server_context(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield certificate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stores: ClassVar[Mapping[str, RayClusterStore]]

    def do_GET(self) -> None:
        if match := re.search(r"/rayclusters/([^/?]+)", self.path):
            self._answer(self.stores[match[1]].cluster)
        elif match := re.search(r"/pods\?labelSelector=ray\.io/cluster%3D([^&]+)", self.path):
            self._answer(self.stores[match[1]].pod_list())
        elif match := re.search(r"/pods/([^/?]+)", self.path):
            pods = [pod for store in self.stores.values() for pod in store.pod_list()["items"]]
            found = [pod for pod in pods if pod["metadata"]["name"] == match[1]]
            self._answer(found[0]) if found else self._answer({"message": "no such pod"}, 404)
        else:
            self._answer({"message": f"no such path: {self.path}"}, 404)

    def do_PATCH(self) -> None:
        match = re.search(r"/rayclusters/([^/?]+)", self.path)
        assert match, self.path
        operations = json.loads(self.rfile.read(int(self.headers["content-length"])))
        store = self.stores[match[1]]
        problems = store.patch(operations)
        self._answer({"message": "; ".join(problems)}, 422) if problems else self._answer(store.cluster)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, content: Mapping[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _apply(document: Any, operation: Mapping[str, Any]) -> None:
    *way, last = operation["path"].strip("/").split("/")
    at = document
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    if operation["op"] == "remove":
        del at[last]
    else:
        at[last] = operation["value"]
