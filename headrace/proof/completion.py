"""A server in this container becomes healthy and answers one completion.

Request: `{"port": 8000, "model": "/model", "prompt": "w3 w4", "tokens": 4, "deadline_s": 300}`.
"""

from __future__ import annotations

import http.client
import json
import time

from headrace.proof.answer import Answer, Request

PAUSE_S = 0.5
ANSWER_S = 120.0


def prove(request: Request) -> Answer:
    """Wait for /health, then ask for a completion of exactly `tokens` tokens."""
    answer = Answer()
    port, started = request["port"], time.monotonic()
    # Leave the time of one answer before the deadline that dumps stacks and says nothing else.
    health_until = started + max(request["deadline_s"] - ANSWER_S, 1.0)
    while (problem := healthy(port)) and time.monotonic() < health_until:
        time.sleep(PAUSE_S)
    answer.facts["seconds_to_health"] = round(time.monotonic() - started, 1)
    if problem:
        answer.problems.append(f"/health on port {port} never answered 200: {problem}")
        return answer
    status, body = post(
        port,
        "/v1/completions",
        {
            "model": request["model"],
            "prompt": request["prompt"],
            "max_tokens": request["tokens"],
            "ignore_eos": True,
        },
    )
    if status != 200:
        answer.problems.append(f"/v1/completions answered {status}: {body[:500]}")
        return answer
    reply = json.loads(body)
    found = reply.get("usage", {}).get("completion_tokens")
    answer.facts.update(text=reply["choices"][0]["text"], tokens=found)
    if found != request["tokens"]:
        answer.problems.append(f"expected {request['tokens']} tokens, found {found}")
    return answer


def healthy(port: int) -> str:
    """Return "" if /health answers 200, else what it did instead."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as failure:
        return str(failure)
    finally:
        connection.close()
    return "" if status == 200 else f"status {status}"


def post(port: int, path: str, body: object) -> tuple[int, str]:
    """Send `body` as JSON; return status and text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request(
            "POST", path, json.dumps(body), headers={"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        return reply.status, reply.read().decode(errors="replace")
    finally:
        connection.close()
