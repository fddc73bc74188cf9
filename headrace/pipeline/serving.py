"""The check that an image's own command serves where there is no network."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from headrace.pipeline import container
from headrace.pipeline.subject import RefutedError, Subject, read_answer
from headrace.proof.tiny_model import write_tiny_model

# It becomes `vllm serve` with words that are not headrace's own.
COMMAND = ["headrace", "serve"]
PORT = 8000
SERVE_S = 540.0
# Of a log line that an error repeats, in characters.
LINE = 200


def starts_offline(subject: Subject) -> str:
    """The image's own command serves a completion where there is no network at all."""
    settings = subject.image.config.get("config", {})
    entry, command = list(settings.get("Entrypoint") or []), list(settings.get("Cmd") or [])
    if entry != COMMAND or command:
        raise RefutedError(
            [f"image command: expected Entrypoint {COMMAND} and no Cmd, found {entry}, {command}"]
        )
    log = subject.layout.logs / f"serve-{subject.flavor}.log"
    subject.layout.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="model-", dir=subject.layout.build) as folder:
        write_tiny_model(Path(folder))
        words = [
            "/model", "--load-format", "dummy", "--max-model-len", "128",
            "--host", "127.0.0.1", "--port", str(PORT),
        ]  # fmt: skip
        request = {
            "port": PORT, "model": "/model", "prompt": "w3 w4 w5", "tokens": 4,
            "deadline_s": SERVE_S,
        }  # fmt: skip
        with container.created(
            subject.digest,
            words,
            mounts={Path(folder).resolve(): "/model"},
            env={"VLLM_CPU_KVCACHE_SPACE": "1"},
        ) as made:
            made.start()
            try:
                outcome = made.execute(
                    ["python", "-m", "headrace.proof", "completion"],
                    stdin=json.dumps(request),
                    timeout=SERVE_S + 30,
                )
                ended = made.ended()
            finally:
                made.save_log(log)
    if ended:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        raise RefutedError([f"the server {ended} and said last: {said[:LINE]}; log: {log}"])
    facts = read_answer("completion", outcome)
    return f"healthy after {facts['seconds_to_health']} s, {facts['tokens']} tokens; log: {log}"
