"""Checks the dependencies of access control: the keys file, the issuer, the limits store."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import aiohttp

from app.access.keys import KeyFile
from app.access.oidc import Issuer, fetch
from app.config.access import Oidc, StoreSettings
from app.config.base import ConfigError
from app.errors import Unauthorized, Unavailable
from app.limits.redis_store import shared_store
from app.limits.store import StoreFailed
from deployments.doctor.finding import Finding, ok, problem, warning
from deployments.doctor.installation import Installation
from deployments.invocation import argument, command


def keys(it: Installation) -> Iterator[Finding]:
    """Checks that the keys file can be read, and has keys."""
    file = it.config.access.keys_file if it.config is not None else None
    if file is None:
        return
    if it.on_cluster and not file.parent.exists():
        fix = "run the command in a router's pod, too"
        yield warning("keys", f"{file.parent} is not mounted on this node: the keys are not checked", fix)
        return
    try:
        ring = KeyFile(file).ring
    except ConfigError as error:
        for line in error.problems:
            create = command("keys create --name NAME --file FILE")
            yield problem("keys", line, f"correct the file, or create keys: {create}")
        return
    if not len(ring):
        yield warning("keys", f"{file} has no keys", command(f"keys create --name NAME --file {argument(file)}"))
    else:
        yield ok("keys", f"{file} has {len(ring)} keys")


def issuer(it: Installation) -> Iterator[Finding]:
    """Checks that the OpenID Connect issuer answers with its keys."""
    oidc = it.config.access.oidc if it.config is not None else None
    if oidc is not None:
        reachable = asyncio.run(_has_keys(oidc))
        if reachable:
            yield ok("issuer", f"{oidc.issuer} answers")
        else:
            fix = "check its URL, the network policy, and the certificates of this machine"
            yield problem("issuer", f"{oidc.issuer} does not answer with its keys: tokens cannot be verified", fix)


def limits_store(it: Installation) -> Iterator[Finding]:
    """Checks that the limits store answers."""
    settings = it.config.access.limits.store if it.config is not None else None
    if settings is None:
        return
    try:
        url = settings.read()
    except (KeyError, OSError):
        if it.on_cluster:
            fix = "set it for the routers' pods, and run the command in one of them"
            yield warning("limits store", f"this node cannot read its URL from {_place(settings)}", fix)
        else:
            yield problem("limits store", f"its URL cannot be read from {_place(settings)}", "set it there")
        return
    try:
        asyncio.run(_answers(url))
    except ValueError:
        yield problem("limits store", f"the value of {_place(settings)} is not a redis:// URL", "correct it")
    except StoreFailed as error:
        fix = "start it, or correct its URL, password or network policy; `on_store_failure` decides meanwhile"
        yield problem("limits store", f"it does not answer: {error}", fix)
    else:
        yield ok("limits store", "it answers")


async def _has_keys(oidc: Oidc) -> bool:
    async with aiohttp.ClientSession() as session:
        try:
            await Issuer(oidc, partial(fetch, session), time.monotonic).key("switchyard-doctor")
        except Unavailable:
            return False
        except Unauthorized:  # there are keys, and this is not one of them
            return True
    return True


async def _answers(url: str) -> None:
    store = shared_store(url)
    try:
        await store.window("switchyard-doctor")
    finally:
        with suppress(StoreFailed):
            await store.close()


def _place(settings: StoreSettings) -> str:
    if settings.url_env is not None:
        return f"the variable {settings.url_env}"
    return str(settings.url_file) if settings.url_file is not None else "`url`"
