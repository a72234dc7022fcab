"""The web application: which path leads where, and what every request passes on its way. Start reading here."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from exactlm.server.auth import KeyRing
from exactlm.server.chat import ChatFormat
from exactlm.server.completion import CompletionFormat
from exactlm.server.errors import ApiError, make_error
from exactlm.server.generate import GenerateEndpoint
from exactlm.server.metric import CONTENT_TYPE
from exactlm.server.openapi import OPEN_PATHS, make_document
from exactlm.server.reading import ClientGoneError
from exactlm.server.reply import send_json
from exactlm.server.service import Service
from exactlm.server.tokenization import TokenEndpoint, detokenize, tokenize

_LOG = logging.getLogger("exactlm.server")
Handler = Callable[[Request], Awaitable[Response]]


def make_app(service: Service, created: int) -> Starlette:
    """The application over a started service. `created`: Unix seconds that the model's card shows."""
    config = service.config
    document = json.dumps(make_document(config.model_name, not config.keys.is_open)).encode("ascii")
    card = make_card(service, created)
    routes = [
        Route("/v1/chat/completions", GenerateEndpoint(service, ChatFormat), methods=["POST"]),
        Route("/v1/completions", GenerateEndpoint(service, CompletionFormat), methods=["POST"]),
        Route("/tokenize", TokenEndpoint(service, tokenize), methods=["POST"]),
        Route("/detokenize", TokenEndpoint(service, detokenize), methods=["POST"]),
        Route("/v1/models", _show({"object": "list", "data": [card]}), methods=["GET"]),
        Route("/v1/models/{model:path}", _show_model(card), methods=["GET"]),
        Route("/health", _show({"status": "ok"}), methods=["GET"]),
        Route("/ready", _show_ready(service), methods=["GET"]),
        Route("/metrics", _show_metrics(service), methods=["GET"]),
        Route("/openapi.json", _show_bytes(document), methods=["GET"]),
    ]
    middleware = []
    if config.cors_origins:
        names = ["Authorization", "Content-Type"]
        origins = list(config.cors_origins)
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=names)
        )
    middleware.append(Middleware(Gate, keys=config.keys))
    handlers: dict[Any, Any] = {
        ApiError: _tell,
        HTTPException: _tell_http,
        ClientGoneError: _tell_nobody,
        Exception: _tell,
    }
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


def make_card(service: Service, created: int) -> dict[str, Any]:
    """What /v1/models tells of the model."""
    llm = service.llm
    return {
        "id": service.config.model_name,
        "object": "model",
        "created": created,
        "owned_by": "exactlm",
        "max_model_len": llm.context_tokens,
        "exactlm": {"fingerprint": llm.fingerprint},
    }


class Gate:
    """Lets requests with a key through, and everyone to the open paths."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks the key before anything of the request is read."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._keys.check(scope["headers"])
            except ApiError as error:
                await send_json(send, error.status, error.body, headers=error.headers)
                return
        await self._app(scope, receive, send)


async def _tell(request: Request, error: Exception) -> Response:
    told = make_error(error)
    if told.status == 500:
        _LOG.error("%s failed", request.url.path, exc_info=error)
    return Response(told.body, told.status, told.headers, "application/json")


async def _tell_http(request: Request, error: HTTPException) -> Response:
    path = request.url.path
    message = f"there is nothing at {path:.200}; GET /openapi.json lists what there is"
    if error.status_code == 405:
        message = f"{request.method} is not for {path:.200}; use {(error.headers or {}).get('Allow', 'another method')}"
    told = ApiError(error.status_code, message, headers=dict(error.headers or {}))
    return Response(told.body, told.status, told.headers, "application/json")


async def _tell_nobody(request: Request, error: ClientGoneError) -> None:
    return None


def _show(value: dict[str, Any]) -> Handler:
    return _show_bytes(json.dumps(value).encode("ascii"))


def _show_bytes(body: bytes) -> Handler:
    async def show(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return show


def _show_model(card: dict[str, Any]) -> Handler:
    async def show(request: Request) -> Response:
        name = request.path_params["model"]
        if name != card["id"]:
            message = f"the model {name!r:.100} is not served here; this server has {card['id']!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return Response(json.dumps(card), media_type="application/json")

    return show


def _show_ready(service: Service) -> Handler:
    async def show(request: Request) -> Response:
        service.check_ready()
        return Response(b'{"status": "ready"}', media_type="application/json")

    return show


def _show_metrics(service: Service) -> Handler:
    async def show(request: Request) -> Response:
        return Response(await service.run_aside(service.metrics.render), headers={"content-type": CONTENT_TYPE})

    return show
