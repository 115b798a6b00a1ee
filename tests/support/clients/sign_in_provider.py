"""An issuer where people sign in: authorization code with PKCE for one public client, checked as the RFCs demand."""

import base64
import hashlib
import secrets
import time
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.support.processes.oidc_provider import LocalIssuer

CLIENT = "switchyard-console"


@dataclass
class SignInProvider(LocalIssuer):
    """`origin` is where the one client is registered, with the redirect URI `<origin>/ui`.

    `access` and `identity` replace claims of the two tokens; `extra` are additional fields of the answer,
    `answer_fields` of the redirect. `refuses` is an error to return instead of a code. `redeemed` counts calls of the
    token endpoint; `problems` lists what was wrong with them.
    """

    origin: str = ""
    access: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    answer_fields: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    refuses: str = ""
    allows_origin: bool = True
    redeemed: int = 0
    problems: list[str] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def discovery(self) -> dict[str, Any]:
        return {
            **super().discovery(),
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/oauth/token",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **self.about,
        }

    def routes(self) -> list[Route]:
        return [
            *super().routes(),
            Route("/authorize", self._authorize),
            Route("/oauth/token", self._token, methods=["POST"]),
        ]

    async def _authorize(self, request: Request) -> Response:
        calls = self.calls = dict(request.query_params)
        if calls.get("client_id") != CLIENT or calls.get("redirect_uri") != f"{self.origin}/ui":
            return HTMLResponse("unknown client or redirect URI", 400)  # never a redirect: RFC 9700, section 4.11
        back = {"state": calls["state"], "iss": self.url}
        wanted = {"response_type": "code", "code_challenge_method": "S256"}
        if any(calls.get(name) != value for name, value in wanted.items()) or len(calls["code_challenge"]) != 43:
            fields = {"error": "invalid_request", **back}
        elif self.refuses:
            fields = {"error": self.refuses, "error_description": "not on a Sunday", **back}
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = calls
            fields = {"code": code, **back}
        where = f"{calls['redirect_uri']}?{urlencode({**fields, **self.answer_fields})}"
        if calls.get("prompt") == "none":
            return RedirectResponse(where, 302)
        return HTMLResponse(f'<!doctype html><title>Sign in</title><a href="{escape(where)}">Continue as alice</a>')

    async def _token(self, request: Request) -> Response:
        self.redeemed += 1
        async with request.form() as form:
            fields = {name: str(value) for name, value in form.items()}
        headers = {"cache-control": "no-store"}
        if self.allows_origin and request.headers.get("origin") == self.origin:
            headers["access-control-allow-origin"] = self.origin
        if problem := self._problem(request, fields):
            self.problems.append(problem)
            return JSONResponse({"error": "invalid_grant", "error_description": problem}, 400, headers)
        calls = self._codes.pop(fields["code"])
        now = int(time.time())
        identity = {"aud": CLIENT, "nonce": calls.get("nonce"), "iat": now, **self.identity}
        answer = {
            "access_token": self.token(**self.access),
            "id_token": self.token(**identity),
            "token_type": "Bearer",
            "expires_in": 600,
            **self.extra,
        }
        return JSONResponse({name: value for name, value in answer.items() if value is not None}, 200, headers)

    def _problem(self, request: Request, fields: dict[str, str]) -> str:
        if request.headers.get("cookie") or request.headers.get("authorization") or "client_secret" in fields:
            return "a public client has neither cookies nor a secret"
        calls = self._codes.get(fields.get("code", ""))
        if fields.get("grant_type") != "authorization_code" or calls is None:
            return "the code is unknown or was used before"
        if (fields.get("client_id"), fields.get("redirect_uri")) != (calls["client_id"], calls["redirect_uri"]):
            return "the code was given to another client"
        digest = hashlib.sha256(fields.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != calls["code_challenge"]:
            return "the verifier does not fit the challenge"
        return ""
