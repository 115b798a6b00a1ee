"""The contract between the router and the other applications: each name and bound that both sides use, once."""

from enum import StrEnum

ROUTER = "router"
"""The name of the router's application in `serve_config.yaml`."""

ROUTER_DEPLOYMENT = "Router"
"""The name of its deployment, which has the `user_config`."""

EXPERIMENTS = "experiments"
"""The name of the application that keeps and judges experiments' exposures, in `serve_config.yaml`."""

BATCHES_PATH = "/batches"
"""`POST`, below the experiments' application: a router's batch of exposures. Both ways `MESSAGE_PACK`."""

RECORDINGS_PATH = "/recordings"
"""`POST`, below the experiments' application: a file of recorded requests, as `MESSAGE_PACK`. 204: it is written."""

EXPORT_PATH = "/export"
"""`GET`, below the experiments' application: the recorded exposures, as a file."""

API_PATH = "/api"
"""Below the experiments' application: questions, as `app.experiments.api` answers them."""

CONTROLLER_HEADER = "x-switchyard-controller"
"""On every response of the experiments' application: without it, something else has answered."""

MESSAGE_PACK = "application/msgpack"

LEDGER_VARIABLE = "SWITCHYARD_LEDGER_BASE"
"""The directory that a relative `ledger.url` is relative to. Default: the process's working directory."""

APP_PREFIX = "/deployments/"
"""A model application's `route_prefix` is this and its name."""

EXTENDED_PATH = "/switchyard/completions"
"""vLLM's `/v1/completions` with three more fields: `deployments.engine.completions` documents it."""

MODEL_PATH = "/switchyard/model"
"""`GET` returns what `app.engine.model.Model` reads: tokenizer, end-of-sequence ids, context length."""

CONTINUATION_HEADER = "x-switchyard-continuation"
"""How a stream outlives its engine (`deployments.engine.continuation`).

In a request: `CONTINUATION_NEW` asks for marks. A decimal K >= 0 says that the client has the events of the first K
output tokens: the last 4 * K bytes of the body are their ids, little-endian uint32, and what precedes them is the body
itself. The answer has only what follows those events.

In a response: `CONTINUATION_MARKED` if the stream has marks, and may be continued. Without it, there are none.
"""

CONTINUATION_NEW = "new"

CONTINUATION_MARKED = "marked"

MARK_TOKENS = b":t "
"""Begins the mark that ends a group of events, those of one output of the engine: `:t 17,5` and an empty line. It names
the tokens whose events precede it; none in `:t ` (what precedes the first token, or an error). Marks are comments of
server-sent events. The last group has everything from the end of generation on: finish reason, usage, `[DONE]`.
"""

MARK_HAND_OVER = b":handover\n\n"
"""The last mark of a stream that its engine hands over: another continues it from the group before."""

MARK_NONE = b":none\n\n"
"""The last mark of a stream that cannot be continued from here on. What follows it is unmarked."""

CONTINUES = "continues"
"""The field of a model's card (`MODEL_PATH`): true if its engine continues streams and marks them."""

REPLICA_AGE_HEADER = "x-switchyard-replica-age-s"
"""The response header in which a replica of a model application reports the seconds since it was ready."""

REPLICA_HEADER = "x-switchyard-replica"
"""The response header with Serve's id of the replica, whose process ends with its engine: by it the router knows
whether two streams have lost the same engine."""

HEAD_FIRST_HEADER = "x-switchyard-head-first"
"""On a router's request for a whole answer: the replica sends the head at once, with this header, and what it would
have sent begins the body, as a line: `400 application/json`. The router knows then which engine works on the request,
and sends it to no other."""

INTERNAL_KEY_HEADER = "x-switchyard-key"
"""The header in which the router sends an internal key; a model application and the controller reject requests without
theirs (`app.internal_keys`)."""

INTERNAL_KEY_VARIABLE = "SWITCHYARD_INTERNAL_KEY"
"""The environment variable with the master of the internal keys, on nodes of routers and of the controller."""

ENGINE_KEY_VARIABLE = "SWITCHYARD_ENGINE_KEY"
"""The environment variable with the derived key that model applications verify, on nodes that have no master."""

UNIT_SECRET_VARIABLE = "SWITCHYARD_UNIT_SECRET"
"""The environment variable with the secret of the ledger's hashes, on nodes of routers."""

LOOPBACK_VARIABLE = "SWITCHYARD_LOOPBACK"
"""Set to 1 if Serve listens on the loopback interface only, which a router in a replica cannot see for itself."""

MODELS_VARIABLE = "SWITCHYARD_MODELS"
"""The environment variable with the directory of prepared model weights."""

AWAIT_WEIGHTS_VARIABLE = "SWITCHYARD_AWAIT_WEIGHTS"
"""`1`: a Job fills that directory, and engines wait for it, as long as it takes. Serve gives an application up after
three starts of a replica that fail."""

NO_ROUTE_HEADER = "x-switchyard-no-route"
"""On the answer for a path of which the ingress knows no application, and the router for one of a model: on a new node,
and while an application is deployed or deleted."""

NO_SERVER_HEADER = "x-switchyard-no-server"
"""On the ingress's own errors: its 503 for an application without a replica, and its 502 for a replica that has closed
the connection without an answer. A replica that is busy answers without it."""

PACKAGE_PREFIX = "package:"
"""A `model_source` with this prefix is prepared from an installed package, on the node that needs it."""

KEEP_ALIVE_S = 120
"""The time for which a client's connection may be idle, at the ingress and at a router without one: longer than clients
keep theirs (Node 4 s, httpx 5 s, aiohttp 15 s, Go 90 s), so that none is closed while a request is on its way.
"""

KEEP_ALIVE_MARGIN_S = 5
"""The margin by which the idle time announced in answers (`Keep-Alive`) is shorter than the real one."""

SILENT_S, PROBES = 10, 3
"""Seconds after which a connection to a silent machine of the cluster is closed, and the probes of TCP keepalive before
that. A busy process does not count: its kernel answers."""

MAX_BEAMS = 31
"""The widest beam search. It needs `max_logprobs` of at least twice as many."""

MAX_STOP_STRINGS = 64
"""Stop strings per request: the limit with which model applications are started. vLLM's default is 4."""

MAX_BAD_WORDS = 4096
"""Forbidden sequences per request: the engine looks at them again with each token. vLLM's own field takes 128."""

MAX_SEEDS = 128
"""Seeds per request at `EXTENDED_PATH`."""

LARGEST_SEED = 2**64 - 1


class Xarg(StrEnum):
    """The keys of `vllm_xargs` that this project's logits processors read (`deployments.engine.logits`)."""

    BAD_WORD_TOKENS = "bad_word_tokens"
    FORCED_OUTPUT_TOKENS = "forced_output_tokens"
    NO_REPEAT_NGRAM = "no_repeat_ngram"
    TEMPERATURE = "temperature"
    TYPICAL_P = "typical_p"
    WATERMARK = "watermark"
    XTC_PROBABILITY = "xtc_probability"
    XTC_THRESHOLD = "xtc_threshold"


BAD_WORD_SEPARATOR = -1
"""Separates two sequences of `Xarg.BAD_WORD_TOKENS`, which is a flat list: vLLM takes no nested ones."""


def to_int64_seed(seed: int) -> int:
    """An unsigned 64-bit seed as vLLM's signed one: itself below 2**63, otherwise less 2**64.

    vLLM reads -1 as no seed, so 2**64 - 1 draws what 2**63 draws.
    """
    if seed == LARGEST_SEED:
        return -(2**63)
    return seed if seed < 2**63 else seed - 2**64
