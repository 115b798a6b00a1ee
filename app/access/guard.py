"""Authenticates callers and applies their limits; owns the files and sockets behind that.

`reconfigure` accepts a configuration as a whole or rejects it; what the new one leaves unchanged is kept: API keys, an
issuer's keys, counts. Background tasks reread and renew them; no request waits for those.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from app.access.caller import ANONYMOUS_CALLER, UNAUTHENTICATED, Caller, Roles, credentials
from app.access.issued import IssuedKey, IssuedKeys, records_of
from app.access.keys import KeyFile, KeyRing, KeyUse
from app.access.oidc import (
    RETRY_S,
    TIMEOUT_S,
    Issuer,
    SignIn,
    fetch,
    key_id,
    looks_like_a_token,
    sign_in_with,
    token_caller_id,
    verify,
)
from app.access.refusals import WINDOW_S, RefusalObserver, Refusals, source_of
from app.config.access import ANONYMOUS, KEY, TOKEN, AccessSettings, StoreSettings, exposure_problems, sharing_problems
from app.config.base import ConfigError
from app.config.schema import Config
from app.errors import ClientError, Unauthorized, Unavailable, UpstreamError
from app.limits.bodies import Bodies
from app.limits.limiter import Allowance, Limiter, LimitObserver, UsageSource
from app.limits.store import RENEW_EVERY_S, Store, StoreFailed
from app.telemetry.logs import event, where
from app.upstream.http.client import HttpClient

_NO_KEY = (
    "Credentials are required: send a key or token as `Authorization: Bearer …`, or a key in `api-key` or `x-api-key`"
)

_NOT_READ = "The keys that managers have issued cannot be read yet: the controller of experiments does not answer"

_NO_KEYS = KeyRing()

ReadIssued = Callable[[str], Awaitable[IssuedKeys]]
"""The issued keys, for a reader that has this revision ("" for none). Raises UpstreamError and ClientError."""

_UNLIMITED = nullcontext()
_TWO_KEYS = "The request has different credentials in several headers: send one"
_log = logging.getLogger("switchyard")


class AccessObserver(LimitObserver, RefusalObserver, Protocol):
    """Counts reloads, refusals, and the limiter's decisions."""

    def keys_read(self, outcome: str) -> None:
        """Counts a reload of the keys file: ``applied`` or ``refused``."""


@dataclass(frozen=True, slots=True)
class AccessTiming:
    """Times in seconds. The keys' file is read every `refresh_every_s`. `issuer_retry_s` is the shortest time between
    two fetches of an issuer's keys, `issuer_timeout_s` bounds one; refusals are logged every `refusals_every_s`.
    `clock` is Unix time: keys expire and limits are counted by it.
    """

    refresh_every_s: float = 1.0
    issuer_retry_s: float = RETRY_S
    issuer_timeout_s: float = TIMEOUT_S
    refusals_every_s: float = WINDOW_S
    clock: Callable[[], float] = time.time


DEFAULT_TIMING = AccessTiming()


@dataclass(frozen=True, slots=True)
class _AccessState:
    """The state of one configuration. Replaced as a whole."""

    settings: AccessSettings
    keys: KeyFile | None
    issuer: Issuer | None
    limiter: Limiter
    roles: Roles
    knows_callers: bool
    has_limits: bool
    """Whether callers have limits without a key of their own that has some."""


class Access:
    """Authentication, permissions and limits. `loopback`: only this machine reaches the server; `several_routers`:
    other routers serve the same callers; `behind_ingress`: HAProxy says which address a request comes from."""

    def __init__(
        self,
        observer: AccessObserver,
        *,
        loopback: bool,
        several_routers: bool,
        behind_ingress: bool = False,
        timing: AccessTiming = DEFAULT_TIMING,
        read_issued: ReadIssued | None = None,
    ) -> None:
        """`read_issued`: where issued keys come from; None where there is no controller to keep them."""
        self._observer, self._loopback, self._several, self._timing = observer, loopback, several_routers, timing
        self._behind_ingress, self._refusals = behind_ingress, Refusals(observer, time.monotonic)
        self.bodies = Bodies()
        self._client: HttpClient | None = None
        self._retired: list[Store] = []  # of earlier configurations: their requests still settle there
        self._state: _AccessState | None = None
        self._keys_used: dict[str, float] = {}
        self._read_issued = read_issued
        self._issued: tuple[str, Sequence[IssuedKey], KeyRing] | None = None
        """The issued keys that were read last, with their revision; None before."""
        self._rejected = ""
        """The revision of issued keys that cannot be in force, until there is another configuration."""
        self._in_force: tuple[KeyRing, KeyRing, KeyRing] | None = None
        """The issued keys and those of the file, and what of the former is in force beside the latter."""

    def reconfigure(self, config: Config) -> None:
        """Applies `config` from the next request on. Raises ConfigError, and changes nothing, if it cannot."""
        settings, before = config.access, self._state
        if problems := list(exposure_problems(settings, loopback=self._loopback)):
            raise ConfigError(problems)
        keys = _key_file(settings, before, self._keys_used)
        self._check_sharing(settings, keys.ring if keys is not None else _NO_KEYS)
        if settings.issue_keys and self._issued is not None:
            self._check_sharing(settings, self._issued[2])
        store = _store(settings.limits.store, before, self._timing.clock)
        issuer = before.issuer if before is not None and before.settings.oidc == settings.oidc else None
        if issuer is None and settings.oidc is not None:
            issuer = Issuer(settings.oidc, self._fetch, time.monotonic, self._timing.issuer_retry_s)
        limiter = Limiter(settings.limits, store, self._observer, time.monotonic)
        self._rejected = ""
        roles, has_limits = Roles.from_settings(settings), settings.limits.has_limits
        self._state = _AccessState(settings, keys, issuer, limiter, roles, settings.knows_callers, has_limits)
        if before is not None and before.limiter.store is not store:
            self._retired.append(before.limiter.store)
        if not settings.may_be_exposed and (before is None or before.settings.may_be_exposed):
            _log.warning(
                "Authentication is not configured (`access` has no `keys_file` and no `oidc`); accepting loopback "
                "connections only",
                extra=event("access_open_on_loopback"),
            )

    async def caller(self, headers: Mapping[str, str], peer: Sequence[Any] | None) -> Caller:
        """The caller of a request with these headers. Raises Unauthorized, TooManyRefusals, and Unavailable if that
        cannot be checked. `peer`: the other end of the connection, host and port.

        Without `keys_file` and `oidc` credentials are ignored: clients send one because their SDKs require it.
        """
        state = self._current
        if not state.knows_callers:
            return ANONYMOUS_CALLER
        try:
            if (credential := _only(credentials(headers))) is None:
                if state.settings.allow_anonymous:
                    return ANONYMOUS_CALLER
                raise Unauthorized(_NO_KEY)
            if state.issuer is not None and looks_like_a_token(credential):
                return verify(credential, await state.issuer.key(key_id(credential)), state.issuer.oidc)
            if not state.settings.has_keys:
                raise Unauthorized("The credential is not a bearer token of this server's issuer")
            return self._ring_for(credential, state).caller(credential, self._timing.clock())
        except Unauthorized as error:
            raise self._refused(error, headers, peer) from None

    @property
    def has_several_callers(self) -> bool:
        """Whether requests may be different callers'."""
        state = self._current
        if not state.knows_callers:
            return False
        settings = state.settings
        if settings.oidc is not None or settings.allow_anonymous:
            return True
        return len(self._file_ring(state)) + len(self._issued_ring(state)) > 1

    def key_uses(self) -> Sequence[KeyUse]:
        """Every API key, with its end and its last use on this router since it started."""
        if self._state is None:
            return []
        return [*self._file_ring(self._state).uses(), *self._issued_ring(self._state).uses()]

    def issued_keys(self) -> Sequence[IssuedKey]:
        """The keys that managers have issued, as this router read them last."""
        is_on = self._state is not None and self._state.settings.issue_keys
        return self._issued[1] if is_on and self._issued is not None else ()

    def check_own_limits(self) -> None:
        """Raises ConfigError if no key may have limits of its own here: routers would each admit all of them."""
        problems = sharing_problems(self._current.settings.limits, several_routers=self._several, keys_have_limits=True)
        if shared := list(problems):
            raise ConfigError(shared)

    async def refresh_issued(self) -> None:
        """Reads the issued keys, where they are in use. Raises UpstreamError, ClientError, and ConfigError if they
        cannot be in force."""
        if self._state is None or not self._state.settings.issue_keys or self._read_issued is None:
            return
        issued = await self._read_issued(self._issued[0] if self._issued is not None else "")
        if issued.keys is None or issued.revision == self._rejected:
            return
        ring = KeyRing.from_records(records_of(issued.keys), self._keys_used)
        try:
            self._check_sharing(self._state.settings, ring)
        except ConfigError:
            self._rejected = issued.revision
            raise
        self._issued, self._rejected = (issued.revision, issued.keys, ring), ""

    def _ring_for(self, credential: str, state: _AccessState) -> KeyRing:
        """The keys among which the credential may be. Raises Unavailable if those are not known yet."""
        own = self._file_ring(state)
        if not state.settings.issue_keys or own.holds(credential):
            return own
        if self._issued is None and self._read_issued is not None:
            raise Unavailable(_NOT_READ, retry_after=1)
        return self._issued_ring(state)

    def _file_ring(self, state: _AccessState) -> KeyRing:
        return state.keys.ring if state.keys is not None else _NO_KEYS

    def _issued_ring(self, state: _AccessState) -> KeyRing:
        """The issued keys that are in force: a name of the keys file is the file's."""
        if not state.settings.issue_keys or self._issued is None:
            return _NO_KEYS
        issued, own = self._issued[2], self._file_ring(state)
        if self._in_force is None or self._in_force[0] is not issued or self._in_force[1] is not own:
            self._in_force = issued, own, issued.without(own)
        return self._in_force[2]

    def unauthorized(self) -> Mapping[str, int]:
        """The requests without valid credentials so far, by the reason."""
        return self._refusals.reasons

    def last_uses(self) -> Mapping[str, float]:
        """When each API key was used last here, by its caller's id: the minute in Unix seconds."""
        uses = ((key.caller.id, [key.last_used, key.previous[1] if key.previous else None]) for key in self.key_uses())
        return {id: max(times) for id, both in uses if (times := [at for at in both if at is not None])}

    def id_of(self, name: str) -> str | None:
        """The id of the caller with this name: a key's, a token's principal (`oidc:` in front if a key may have the
        same name), or `anonymous`.

        None if there is none. Any text may be a principal of the issuer's.
        """
        state = self._current
        if name == ANONYMOUS:
            return ANONYMOUS_CALLER.id
        rings = () if name.startswith(TOKEN) else (self._file_ring(state), self._issued_ring(state))
        for ring in rings:
            if (id := ring.id_of(name.removeprefix(KEY))) is not None:
                return id
        if not name.startswith(KEY) and state.issuer is not None:
            return token_caller_id(name.removeprefix(TOKEN))
        return None

    async def sign_in(self) -> SignIn:
        """The console's public sign-in settings, for a page that has no credential yet."""
        if self._state is None:
            return SignIn(credentials=False, required=None, oidc=None)
        settings, issuer = self._state.settings, self._state.issuer
        credentials, required = settings.knows_callers, settings.requires_credentials
        if issuer is None or issuer.oidc.console is None:
            return SignIn(credentials, required, None)
        return SignIn(credentials, required, sign_in_with(issuer.oidc, await issuer.sign_in()))

    @property
    def roles(self) -> Roles:
        """Who may manage what."""
        return self._current.roles

    def admit(
        self, caller: Caller, endpoint: str, tokens: Callable[[], int], usage: UsageSource
    ) -> AbstractAsyncContextManager[object]:
        """The context in which a request of `caller` runs: see `Limiter.admit`."""
        state = self._current
        if caller.limits is None and not state.has_limits:
            return _UNLIMITED
        return state.limiter.admit(caller, endpoint, tokens, usage)

    def counts_requests(self, caller: Caller, endpoint: str) -> bool:
        """Whether the caller has a limit on requests there."""
        state = self._current
        return (caller.limits is not None or state.has_limits) and state.limiter.counts_requests(caller, endpoint)

    async def check_requests(self, caller: Caller, endpoint: str, usage: UsageSource) -> None:
        """Raises LimitExceeded if the caller has no request left on the endpoint: before a body is read."""
        await self._current.limiter.check(caller, endpoint, usage)

    async def count_invalid(self, caller: Caller, endpoint: str, usage: UsageSource) -> None:
        """Counts an invalid request of the caller; "" is no endpoint. Raises LimitExceeded if it is one too many."""
        await self._current.limiter.count_invalid(caller, endpoint, usage)

    async def left(self, caller: Caller, endpoint: str) -> list[Allowance]:
        """The remainder of the caller's limits on the endpoint."""
        return await self._current.limiter.left(caller, endpoint)

    @property
    def limits_are_shared(self) -> bool:
        """Whether all routers count limits together."""
        return self._current.settings.limits.store is not None

    async def reader(self, headers: Mapping[str, str], peer: Sequence[Any] | None) -> Caller:
        """The caller that reads metrics. Raises what `caller` raises if they are restricted.

        They are open by default: scrapers usually have no key, and metrics hold neither keys nor prompts.
        """
        if self._state is None or self._state.settings.metrics == "open":
            return UNAUTHENTICATED
        if (reader := await self.caller(headers, peer)) is ANONYMOUS_CALLER:
            raise self._refused(Unauthorized(_NO_KEY), headers, peer)
        return reader

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Opens the connections, refreshes keys and leases while the block runs, then closes them."""
        every_s = self._timing.refresh_every_s
        tasks = (
            (self._reread_keys, every_s),
            (self._reread_issued, every_s),
            (self._refresh_issuer, every_s),
            (self._renew_leases, RENEW_EVERY_S),
            (self._log_refusals, self._timing.refusals_every_s),
        )
        with closing(HttpClient()) as self._client:
            loops = [asyncio.create_task(_repeat(work, every_s)) for work, every_s in tasks]
            try:
                yield
            finally:
                for task in loops:
                    task.cancel()
                await asyncio.wait(loops)
                self._refusals.log_sum()
                for store in self._stores:
                    with suppress(StoreFailed):
                        await store.close()

    def _refused(self, error: Unauthorized, headers: Mapping[str, str], peer: Sequence[Any] | None) -> ClientError:
        return self._refusals.answer_to(error, source_of(headers, peer, behind_ingress=self._behind_ingress))

    @property
    def _current(self) -> _AccessState:
        if self._state is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        return self._state

    async def _fetch(self, url: str) -> bytes:
        if self._client is None:
            raise OSError("not running")
        return await fetch(self._client, url, self._timing.issuer_timeout_s)

    def _check_sharing(self, settings: AccessSettings, ring: KeyRing) -> None:
        problems = sharing_problems(settings.limits, several_routers=self._several, keys_have_limits=ring.have_limits)
        if shared := list(problems):
            raise ConfigError(shared)

    async def _reread_keys(self) -> None:
        if (state := self._state) is None or state.keys is None:
            return
        try:
            if await asyncio.to_thread(state.keys.reread, partial(self._check_sharing, state.settings)):
                self._observer.keys_read("applied")
                _log.info("API keys reloaded", extra=event("keys_reloaded"))
        except ConfigError as error:
            self._observer.keys_read("refused")
            _log.error(
                "API keys file rejected, keeping the previous keys",
                extra=event("keys_rejected", problems=error.problems),
            )

    async def _reread_issued(self) -> None:
        try:
            await self.refresh_issued()
        except (UpstreamError, ClientError):
            return  # the keys that were read last stay valid; other parts report that the controller is away
        except ConfigError as error:
            self._observer.keys_read("refused")
            _log.error(
                "Issued API keys rejected, keeping the previous ones",
                extra=event("keys_rejected", problems=error.problems),
            )

    async def _refresh_issuer(self) -> None:
        if self._state is not None and self._state.issuer is not None:
            await self._state.issuer.refresh()

    async def _log_refusals(self) -> None:
        self._refusals.log_sum()

    async def _renew_leases(self) -> None:
        for store in self._stores:
            try:
                await store.renew()
            except StoreFailed as error:
                _log.warning(
                    "Could not renew concurrency leases: the limit store does not answer",
                    extra=event("leases_not_renewed", error=str(error)),
                )

    @property
    def _stores(self) -> list[Store]:
        return [*self._retired, *([self._state.limiter.store] if self._state is not None else [])]


async def _repeat(work: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Each task has its own loop: a hanging issuer must not delay the revocation of a key."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except Exception as error:  # noqa: BLE001  a bug in one round must not end the loop
            _log.error("Access refresh task failed", extra=event("access_refresh_failed", traceback=where(error)))


def _only(credentials: Sequence[str]) -> str | None:
    """The one credential, if any. Raises Unauthorized if there are several: a proxy may have checked the other one."""
    if len(credentials) > 1:
        raise Unauthorized(_TWO_KEYS)
    return credentials[0] if credentials else None


def _key_file(settings: AccessSettings, before: _AccessState | None, used: dict[str, float]) -> KeyFile | None:
    if settings.keys_file is None:
        return None
    if before is not None and before.keys is not None and before.keys.path == settings.keys_file:
        before.keys.recheck()
        return before.keys
    try:
        return KeyFile(settings.keys_file, used)
    except ConfigError as error:
        raise ConfigError([f"access.keys_file: {problem}" for problem in error.problems]) from None


def _store(wanted: StoreSettings | None, before: _AccessState | None, clock: Callable[[], float]) -> Store:
    if before is not None and before.settings.limits.store == wanted:
        return before.limiter.store
    if wanted is None:
        return Store.in_memory(clock)
    # Imported only if needed: the Redis client takes as long to import as half of the router.
    from app.limits.redis_store import shared_store

    try:
        return shared_store(wanted.read())
    except OSError as error:
        raise ConfigError([f"access.limits.store.url_file: {wanted.url_file}: {error.strerror}"]) from None
    except KeyError:
        raise ConfigError([f"access.limits.store.url_env: the variable {wanted.url_env} is not set"]) from None
    except ValueError:
        raise ConfigError(["access.limits.store: the URL is not a Redis URL"]) from None
