"""An engine behind a URL that speaks OpenAI's API. Asks first what it can do; what it cannot is told, not guessed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from exactlm.audit.body import Body
from exactlm.audit.cache_control import PROBE as CACHE_PROBE
from exactlm.audit.cache_control import CacheControl, new_salt, probe_cache
from exactlm.audit.condition import (
    Condition,
    Shot,
    Wave,
    Workload,
    cold_condition,
    common_conditions,
    request_conditions,
)
from exactlm.audit.condition import seed_conditions as drawn_conditions
from exactlm.audit.response import read_stream, read_whole
from exactlm.audit.target import Answer, Unvaried, gather_unvaried
from exactlm.errors import ConfigError

NOT_VISIBLE = (
    ("threads", "a server's threads cannot be set from outside: audit it again after starting it with others"),
    ("isa", "its instruction set and machine cannot be chosen: audit it there"),
    ("chunk", "how it cuts prompts into chunks cannot be set from outside"),
    ("memory", "the size of its KV cache cannot be set from outside"),
    ("speculation", "its speculative decoding cannot be set from outside"),
    ("dtype", "the precision of its weights cannot be set from outside"),
)
PROBE = "One, two, three,"  # no prompt that is asked later: it would be found in a cache
PROBE_LOAD = Workload((), 2)


class EndpointTarget:
    """url: with or without /v1. model: its name; None for the first that the server lists. is_chat: ask
    /v1/chat/completions. timeout: seconds for each request. Raises ConfigError if it does not answer."""

    keeps_logits = False

    def __init__(
        self, url: str, model: str | None = None, key: str | None = None, is_chat: bool = False, timeout: float = 120.0
    ) -> None:
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError("EXACTLM_API_KEY: no header can carry it; a key must be printable ASCII")
        base = url.rstrip("/")
        self.url = base if base.endswith("/v1") else f"{base}/v1"
        self.name = re.sub("//[^/]*@", "//", self.url)  # a password is for the server, not for the report
        self.is_chat = is_chat
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        # Nothing of the environment's proxies: the engine is asked, not what stands before it.
        self._timeout = timeout
        self._client = httpx.Client(headers=headers, timeout=timeout, limits=limits, trust_env=False)
        self._unable: dict[str, str] = {}
        self._num_cached: int | None = None
        self._setup: Mapping[str, object] = {}
        self._cache, self._salt = CacheControl(False, None, None), new_salt()
        try:
            self.model = model or self._first_model()
            self._probe()
            self._cache = probe_cache(lambda fields: self._ask(CACHE_PROBE, fields=fields))
        except ConfigError:
            self._client.close()
            raise

    def describe(self) -> dict[str, str]:
        api = "chat completions" if self.is_chat else "completions"
        return {"kind": "endpoint", "engine": self.name, "model": self.model, "API": api}

    def conditions(self, load: Workload) -> list[Condition]:
        made = [*common_conditions(load, self._cache.can_empty), *request_conditions(load)]
        if self._cache.field is not None:
            made.append(cold_condition(load, f"each request with `{self._cache.field}`, which leaves the cache out"))
        if "seed" not in self._unable:
            made += drawn_conditions(load)
        return [c for c in made if c.factor not in self._unable]

    def unvaried(self) -> list[Unvaried]:
        cache = [("cache", self._cache.reason)] if self._cache.reason else []
        return gather_unvaried([*self._unable.items()], cache, NOT_VISIBLE)

    def prepare(self, condition: Condition) -> None:
        self._num_cached, self._setup, self._salt = None, condition.setup, new_salt()

    def fire(self, wave: Wave) -> list[Answer]:
        if len(wave) == 1:
            answers = [self._ask(wave[0])]
        else:
            gate = threading.Barrier(len(wave))
            with ThreadPoolExecutor(len(wave)) as pool:
                answers = list(pool.map(lambda shot: self._ask(shot, gate), wave))
        for shot, answer in zip(wave, answers, strict=True):
            self._count(shot, answer)
        return answers

    def is_alive(self) -> bool:
        try:
            with self._client.stream("GET", f"{self.url}/models"):
                return True
        except httpx.HTTPError:
            return False

    def note(self) -> dict[str, int]:
        return {} if self._num_cached is None else {"cached prompt tokens": self._num_cached}

    def close(self) -> None:
        self._client.close()

    def _count(self, shot: Shot, answer: Answer) -> None:
        """Counts what came from the cache, of the prompts alone. Some servers leave a count of 0 out, and in streams
        all leave it out that are not asked."""
        is_zero = self._cache.is_told and answer.error is None and not shot.is_streamed
        count = answer.num_cached if answer.num_cached is not None else 0 if is_zero else None
        if shot.prompt is not None and count is not None:
            self._num_cached = (self._num_cached or 0) + count

    def _first_model(self) -> str:
        status: int | None = None
        try:
            with self._client.stream("GET", f"{self.url}/models") as response:
                status = response.status_code
                listed = Body(response, time.monotonic() + self._timeout).json()
            if status == 200:
                return str(listed["data"][0]["id"])
        except httpx.InvalidURL as error:
            raise ConfigError(f"{self.name}: is no URL ({error}): use http://HOST:PORT") from None
        except httpx.HTTPError as error:
            raise ConfigError(f"{self.name}: no answer ({error}): is the server running?") from None
        except (ValueError, LookupError, TypeError):
            pass
        if status in (401, 403):
            raise ConfigError(f"{self.name}/models: status {status}: the server wants a key; set EXACTLM_API_KEY to it")
        raise ConfigError(f"{self.name}/models: status {status} and no list of models: give --model-name")

    def _probe(self) -> None:
        """Finds out what the engine can do."""
        plain = Shot(PROBE, None, 2, logprobs=None)
        answer = self._ask(plain)
        if answer.error:
            raise ConfigError(f"{self.name}: the first request failed: {answer.error}")
        told = self._ask(Shot(PROBE, None, 2))
        if told.error or not told.logprobs:
            self._unable["logprobs"] = told.error or "the answer has none, though they were asked for"
        streamed = self._ask(Shot(PROBE, None, 2, is_streamed=True, logprobs=None))
        if streamed.error:
            self._unable["streaming"] = streamed.error
        drawn = self._ask(PROBE_LOAD.drawn(plain))
        if drawn.error:
            self._unable["seed"] = drawn.error

    def _ask(
        self, shot: Shot, gate: threading.Barrier | None = None, fields: Mapping[str, Any] | None = None
    ) -> Answer:
        """One request, `fields` added to it; never raises for what the server does."""
        if gate is not None:
            gate.wait()
            time.sleep(shot.delay)
        begin = time.monotonic()
        try:
            answer = self._request(shot, fields)
        except httpx.TimeoutException as error:
            answer = Answer(error=f"timeout: {type(error).__name__}")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            answer = Answer(error=f"{type(error).__name__}: {error}"[:300])
        answer.seconds = round(time.monotonic() - begin, 4)
        return answer

    def _request(self, shot: Shot, fields: Mapping[str, Any] | None) -> Answer:
        end = time.monotonic() + self._timeout
        more = fields if fields is not None else self._cache.fields(self._setup, self._salt)
        with self._client.stream("POST", self._path, json={**self._body(shot), **more}) as response:
            body = Body(response, end)
            if response.status_code != 200:
                return Answer(error=f"status {response.status_code}: {body.text()[:200]}")
            return read_stream(body.lines()) if shot.is_streamed else read_whole(body.json())

    @property
    def _path(self) -> str:
        return f"{self.url}/chat/completions" if self.is_chat else f"{self.url}/completions"

    def _body(self, shot: Shot) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "max_tokens": shot.max_tokens, "temperature": shot.temperature}
        if self.is_chat:
            body["messages"] = [{"role": "user", "content": shot.text}]
        else:
            body["prompt"] = shot.text
        if shot.seed is not None:
            body["seed"] = shot.seed
        if shot.is_streamed:
            body["stream"] = True
        if shot.logprobs is not None and "logprobs" not in self._unable:
            body |= {"logprobs": True, "top_logprobs": shot.logprobs} if self.is_chat else {"logprobs": shot.logprobs}
        return body
