"""READ THIS FIRST. One request's journey, top to bottom:

    authenticate -> read -> parse -> route -> reserve, queue -> forward -> write

`handle` is the journey. Its steps are methods of `Exchange`; `forward.py` calls the deployment, `response.py`
writes the answer or the error. What they guarantee:

- an error before the first byte is a real HTTP status in the dialect's own form; after it, the stream ends with the
  dialect's error event, never in silence;
- for every body, however malicious, the event loop serves others within 50 ms: what is long is parsed and written in a
  thread and in pieces (`app/long_json.py`), after its size and the number of its values have been checked; rights come
  first, and invalid requests count;
- a deployment that fails before the first byte is replaced once: by another of the endpoint, else by another of its
  replicas, as long as retries make no more than a tenth of the load;
- the engine stops working for a client that disconnects;
- every response names the deployment that produced it, the endpoint's plan, and the request's id.
"""

from collections.abc import Mapping
from typing import Any

from app.aio import Receive, while_connected
from app.errors import ClientError, SwitchyardError
from app.exchange.exchange import Candidates, Exchange
from app.exchange.forward import forward
from app.exchange.observers import UNOBSERVED, observer_of
from app.exchange.response import Send, errors_rendered
from app.exchange.state import RouterState


async def handle(
    state: RouterState,
    candidates: Candidates,
    scope: Mapping[str, Any],
    receive: Receive,
    send: Send,
    *,
    refusal: SwitchyardError | None = None,
) -> None:
    """Serves one HTTP request (ASGI). With a `refusal` it only answers that, in the dialect's form."""
    exchange, observer = Exchange(state, candidates, scope, receive, send), UNOBSERVED
    try:
        async with errors_rendered(exchange.writer, exchange.render):
            exchange.claim()
            if refusal is not None:
                raise refusal
            try:
                await exchange.authenticate()
                await exchange.read()
                if exchange.route.local:
                    await exchange.answer()
                    return
                await exchange.parse()
                with while_connected(receive, exchange.is_answered):
                    await exchange.assign()
                    await exchange.check()
                    async with exchange.limits(), exchange.slot():
                        exchange.admitted()
                        observer = observer_of(exchange)
                        await forward(exchange, observer)
            except ClientError as error:
                raise await exchange.refused(error) from None
    finally:
        exchange.end()
        observer.ended()
