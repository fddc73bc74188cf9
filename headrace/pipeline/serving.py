"""The check that an image's own command serves where there is no network."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

from headrace.errors import ImageError
from headrace.pipeline import container
from headrace.pipeline.gpu import ADVICE
from headrace.pipeline.subject import RefutedError, Subject, UnprovedError, read_answer
from headrace.proof.tiny_model import write_tiny_model

# It becomes `vllm serve` with words that are not headrace's own.
COMMAND = ["headrace", "serve"]
PORT = 8000
SERVE_S = 540.0
# Of a log line that an error repeats, in characters.
LINE = 200


def starts_offline(subject: Subject, gpus: str = "") -> str:
    """The image's own command serves a completion where there is no network at all.

    Args:
        gpus: which GPUs the engine gets, as docker names them; "" for an engine on the CPU.

    Raises:
        RefutedError: the image has another command, or the engine ends or does not answer.
        UnprovedError: docker gives no container a GPU.
    """
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
            *(("--dtype", "bfloat16") if gpus else ()),
        ]  # fmt: skip
        request = {
            "port": PORT, "model": "/model", "prompt": "w3 w4 w5", "tokens": 4,
            "deadline_s": SERVE_S,
        }  # fmt: skip
        with ExitStack() as stack:
            try:
                made = stack.enter_context(
                    container.created(
                        subject.digest,
                        words,
                        mounts={Path(folder).resolve(): "/model"},
                        env={} if gpus else {"VLLM_CPU_KVCACHE_SPACE": "1"},
                        gpus=gpus,
                    )
                )
                made.start()
            except ImageError as refused:
                if not gpus:
                    raise
                # Docker finds out at one or the other that it cannot.
                raise UnprovedError(
                    f"docker started no container with a GPU: {refused}; {ADVICE}"
                ) from refused
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
