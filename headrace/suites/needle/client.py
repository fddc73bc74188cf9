"""The endpoint over HTTP: its model, its tokenizer, completions with usage, its counters."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from headrace.errors import EndpointError, ModelNameError, NoCachedTokensError

# Counters of vLLM: tokens found in its own prefix cache, and those that a connector brought.
_HITS = re.compile(
    r"^vllm:(external_)?prefix_cache_hits_total(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE
)
_QUICK_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """One completion.

    Attributes:
        text: what the model said.
        prompt_tokens, cached: of the endpoint's usage; `cached` None if it does not say.
        seconds: from sending to the end.
        logprobs: of the answer's tokens, if they were asked for.
    """

    text: str
    prompt_tokens: int
    cached: int | None
    seconds: float
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Hits:
    """Tokens found so far in the engine's own prefix cache and by its connector."""

    own: int
    connector: int


class Endpoint:
    """One OpenAI-compatible server. A context manager.

    Attributes:
        model: the name that requests carry, once `greet` has returned.
        limit: tokens of prompt and answer that the model takes; None if the endpoint keeps it.
    """

    def __init__(self, url: str, model: str, patience: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self.limit: int | None = None
        self._client = httpx.Client(timeout=httpx.Timeout(patience, connect=10.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def greet(self) -> None:
        """Find the model, its limit, and whether usage names cached tokens.

        Raises:
            EndpointError: nothing answers, or something else than an OpenAI-compatible server.
            ModelNameError: it serves no such model.
            NoCachedTokensError: its usage does not say what came from a cache.
        """
        try:
            served = {str(each["id"]): each for each in self._get("/v1/models").json()["data"]}
        except (ValueError, KeyError, TypeError) as strange:
            raise EndpointError(
                f"{self.url}/v1/models: expected a list of models, found something else; "
                "name an OpenAI-compatible endpoint"
            ) from strange
        if not self.model and len(served) == 1:
            self.model = next(iter(served))
        if self.model not in served:
            raise ModelNameError(
                f"{self.url}: expected to serve {self.model or 'one model'!r}, found "
                f"{', '.join(map(repr, served)) or 'none'}; name one with --model"
            )
        limit = served[self.model].get("max_model_len")
        self.limit = None if limit is None else self._count("/v1/models", "max_model_len", limit)
        # Short, so that nothing of it is cached.
        if self.complete(self.encode("hello", True), 1).cached is None:
            raise NoCachedTokensError(
                f"{self.url}: expected usage.prompt_tokens_details.cached_tokens, found none; "
                "start vllm serve with --enable-prompt-tokens-details"
            )

    def encode(self, text: str, start: bool) -> list[int]:
        """Return the token ids of `text`; with `start` as at the start of a prompt."""
        answer = self._post(
            "/tokenize",
            {"model": self.model, "prompt": text, "add_special_tokens": start},
            _QUICK_SECONDS,
        )
        try:
            tokens = [int(token) for token in answer["tokens"]]
        except (KeyError, TypeError, ValueError, OverflowError) as strange:
            raise EndpointError(
                f"{self.url}/tokenize: expected token ids, found something else; "
                "the suite needs vLLM's /tokenize for exact lengths"
            ) from strange
        if not tokens:
            raise self._strange("/tokenize", "tokens", "the ids of a text", tokens)
        return tokens

    def complete(
        self,
        tokens: Sequence[int],
        count: int,
        *,
        salt: str = "",
        logprobs: bool = False,
        patience: float | None = None,
    ) -> Answer:
        """Return what follows the prompt `tokens`, at most `count` tokens, most likely ones.

        A `salt` gives the prompt's cache entries other names: vLLM's and the multi-process
        LMCache's by `cache_salt`, the in-process LMCache's by a tag.
        """
        request: dict[str, Any] = {
            "model": self.model, "prompt": list(tokens), "max_tokens": count, "temperature": 0,
        }  # fmt: skip
        if logprobs:
            request["logprobs"] = 0
        if salt:
            request["cache_salt"] = salt
            request["kv_transfer_params"] = {"lmcache.tag.headrace": salt}
        began = time.monotonic()
        answer = self._post("/v1/completions", request, patience)
        seconds = time.monotonic() - began
        path = "/v1/completions"
        try:
            usage = answer["usage"]
            details = usage.get("prompt_tokens_details") or {}
            choice = answer["choices"][0]
            text, prompt_tokens = choice["text"], usage["prompt_tokens"]
            cached = details.get("cached_tokens")
            found = tuple(map(float, choice["logprobs"]["token_logprobs"] if logprobs else ()))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as strange:
            raise EndpointError(
                f"{self.url}{path}: expected a completion with usage, found something else; "
                "name an OpenAI-compatible endpoint"
            ) from strange
        if not isinstance(text, str):
            raise self._strange(path, "text", "a string", text)
        return Answer(
            text, self._count(path, "prompt_tokens", prompt_tokens),
            None if cached is None else self._count(path, "cached_tokens", cached), seconds, found,
        )  # fmt: skip

    def hits(self) -> Hits | None:
        """Return the engine's counters, summed over its engines; None if it has none to read."""
        try:
            answer = self._client.get(f"{self.url}/metrics", timeout=_QUICK_SECONDS)
        except httpx.HTTPError:
            return None
        found = _HITS.findall(answer.text) if answer.status_code == 200 else []
        if not found:
            return None
        total = {"": 0, "external_": 0}
        try:
            for kind, number in found:
                total[kind] += int(float(number))
        except (ValueError, OverflowError):
            return None
        return Hits(total[""], total["external_"])

    def forget_own_prefixes(self) -> None:
        """Empty vLLM's own prefix cache if it lets us: only a server in development mode does."""
        try:
            self._client.post(f"{self.url}/reset_prefix_cache", timeout=_QUICK_SECONDS)
        except httpx.HTTPError as failure:
            raise self._down(failure) from failure

    def wait(self, seconds: float, alive: Callable[[], bool] = lambda: True) -> bool:
        """Return whether the endpoint becomes healthy within `seconds`, and while it is `alive`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and alive():
            try:
                answer = self._client.get(f"{self.url}/health", timeout=_QUICK_SECONDS)
                if answer.status_code == 200:
                    return True
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        return False

    def _get(self, path: str) -> httpx.Response:
        try:
            answer = self._client.get(self.url + path, timeout=_QUICK_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as failure:
            raise self._down(failure) from failure
        if answer.status_code != 200:
            raise EndpointError(
                f"{self.url}{path}: expected status 200, found {answer.status_code}; "
                "name an OpenAI-compatible endpoint"
            )
        return answer

    def _post(self, path: str, content: Mapping[str, Any], patience: float | None) -> Any:
        timeout = self._client.timeout if patience is None else httpx.Timeout(patience)
        try:
            answer = self._client.post(self.url + path, json=content, timeout=timeout)
        except (httpx.HTTPError, httpx.InvalidURL) as failure:
            raise self._down(failure) from failure
        if answer.status_code != 200:
            said = " ".join(answer.text.split())[:200]
            raise EndpointError(
                f"{self.url}{path}: expected status 200, found {answer.status_code}: {said}"
            )
        try:
            return answer.json()
        except ValueError as strange:
            raise EndpointError(f"{self.url}{path}: expected JSON, found none") from strange

    def _count(self, path: str, name: str, found: object) -> int:
        """Return a count that the endpoint told; raise EndpointError if it is something else."""
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self._strange(path, name, "a count", found)
        return found

    def _strange(self, path: str, name: str, expected: str, found: object) -> EndpointError:
        return EndpointError(
            f"{self.url}{path}: expected {expected} as {name}, found {json.dumps(found)[:80]}; "
            "name an OpenAI-compatible endpoint"
        )

    def _down(self, failure: Exception) -> EndpointError:
        return EndpointError(
            f"{self.url}: expected an endpoint that answers, found: "
            f"{failure or type(failure).__name__}; start it, or name another"
        )
