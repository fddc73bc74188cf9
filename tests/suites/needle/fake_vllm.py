"""`vllm serve` as far as the private deployment uses it: the stand-in engine as a process.

python -m tests.suites.needle.fake_vllm serve MODEL --host H --port P --tensor-parallel-size W …
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import valkey

from tests.suites.needle.fake_engine import Behaviour, FakeEngine


def main() -> None:
    """Serve until a signal ends the process."""
    words = sys.argv[1:]
    assert words[0] == "serve"
    extra = json.loads(os.environ["LMCACHE_EXTRA_CONFIG"])
    assert extra["pcp_shard_store"] is True
    servers = []
    for rank in range(int(words[words.index("--tensor-parallel-size") + 1])):
        url = os.environ["LMCACHE_REMOTE_URL"].replace("{rank}", str(rank))
        host, port = url.removeprefix("resp://").split(":")
        servers.append(valkey.Valkey(host=host, port=int(port)))
    behaviour = Behaviour(
        chunk=int(os.environ["LMCACHE_CHUNK_SIZE"]),
        model=words[1],
        connector="no-cache" not in os.environ.get("FAKE_VLLM", ""),
        sums="no-sums" not in os.environ.get("FAKE_VLLM", ""),
    )
    engine = FakeEngine(servers, behaviour, int(words[words.index("--port") + 1]))
    # A tokenizer outlives its process: the same numbers after a restart.
    tokenizer = json.loads((Path(words[1]) / "tokenizer.json").read_text())
    engine.encode(" ".join(tokenizer["model"]["vocab"]))
    print("serving", flush=True)
    with engine:
        signal.pause()


if __name__ == "__main__":
    main()
