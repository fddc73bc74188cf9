"""Cases of one scripted reply each: at the start, middle and end of a batch, however it arrives."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from headrace.suites.missing_key.case import Case, Seen, Surroundings, WrongError
from headrace.suites.missing_key.native import (
    SOCKET_TIMEOUT_MS,
    Completion,
    NativeClient,
    check_get,
)
from headrace.suites.missing_key.replies import (
    COMMANDS,
    REPLIES,
    Command,
    Delivery,
    Reply,
    deliveries,
)
from headrace.suites.missing_key.scripted_server import ScriptedServer
from headrace.suites.missing_key.values import poisoned, value_of

SIZE = 4096
BATCH = 5
POSITIONS = {"start": 0, "middle": BATCH // 2, "end": BATCH - 1}
AFTER = "after"

# What a good answer to a command in the batch means for the keys around the scripted one.
_NEIGHBOURS_HELD = {"GET": True, "SET": False, "LOOKUP": True, "DEL": True}


@dataclass
class Attempt:
    """One client whose batch meets the reply once."""

    name: str
    delivery: Delivery
    position: int
    keys: list[str]
    buffers: list[bytearray]
    client: NativeClient
    batch: int = 0


def reply_cases() -> Iterator[Case]:
    """Yield a case for each command and reply. Replies made for one command stay with it."""
    for command in COMMANDS:
        for reply in REPLIES:
            if reply.yes and reply.whole_only and command not in reply.yes:
                continue
            yield Case(
                name=f"reply/{command}/{reply.name}",
                expected=_expected(reply, command),
                run=partial(_meet, reply=reply, command=command),
            )


def _expected(reply: Reply, command: Command) -> str:
    meaning = reply.meaning(command)
    if meaning == "failed":
        text = "that key fails with its text"
    elif meaning == "no":
        text = {"GET": "a miss", "LOOKUP": "absent", "DEL": "nothing deleted"}[command]
    else:
        text = {"GET": "loaded", "SET": "stored", "LOOKUP": "present", "DEL": "deleted"}[command]
    return f"{text}; the other keys and the next command work"


def _meet(around: Surroundings, reply: Reply, command: Command) -> Seen:
    """Send the batches of all attempts at once, then check each.

    Raises:
        WrongError: what went wrong, with the number of attempts that saw it and the first's name.
    """
    wrong: dict[str, list[str]] = defaultdict(list)
    slowest = 0.0
    with ScriptedServer({AFTER: value_of(AFTER, SIZE)}) as server, ExitStack() as stack:
        attempts = list(_attempts(around, server, reply, command))
        for attempt in attempts:
            stack.enter_context(attempt.client)
        for attempt in attempts:
            attempt.batch = _start(attempt, command)
        answered = []
        until = time.monotonic() + around.patience
        for attempt in attempts:
            try:
                completion = attempt.client.wait(attempt.batch, until)
                _check(attempt, completion, command, server)
            except WrongError as problem:
                wrong[str(problem)].append(attempt.name)
            else:
                slowest = max(slowest, completion.ms)
                answered.append(attempt)
        _next_command(answered, around.patience, wrong)
    if wrong:
        raise WrongError(_gather(wrong, len(attempts)))
    return Seen(f"so in {len(attempts)} of {len(attempts)} ways", slowest)


def _next_command(
    attempts: Sequence[Attempt], patience: float, wrong: dict[str, list[str]]
) -> None:
    """GET a good key with every client, all at once so that hung ones share one wait."""
    started = []
    for attempt in attempts:
        buffer = poisoned(SIZE)
        started.append((attempt, buffer, attempt.client.start_get([AFTER], [buffer])))
    until = time.monotonic() + patience
    for attempt, buffer, batch in started:
        try:
            check_get(attempt.client.wait(batch, until), [AFTER], [buffer], [True])
        except WrongError as problem:
            wrong[f"the next GET: {problem}"].append(attempt.name)


def _attempts(
    around: Surroundings, server: ScriptedServer, reply: Reply, command: Command
) -> Iterator[Attempt]:
    # How many ways there are depends on the length of the value alone, each script on the value.
    ways = len(list(deliveries(reply, command, bytes(SIZE))))
    for place, position in POSITIONS.items():
        for number in range(ways):
            keys = [f"{place}-{number}-{index}" for index in range(BATCH)]
            value = value_of(keys[position], SIZE)
            delivery = list(deliveries(reply, command, value))[number]
            server.scripts[command, keys[position]] = delivery.script
            if _NEIGHBOURS_HELD[command]:
                server.store.update({key: value_of(key, SIZE) for key in keys})
            values = [bytearray(value_of(key, SIZE)) for key in keys]
            yield Attempt(
                name=f"{delivery.name} at the {place}",
                delivery=delivery,
                position=position,
                keys=keys,
                buffers=values if command == "SET" else [poisoned(SIZE) for _ in keys],
                client=NativeClient(server.endpoint, around.patience),
            )


def _start(attempt: Attempt, command: Command) -> int:
    if command == "GET":
        return attempt.client.start_get(attempt.keys, attempt.buffers)
    if command == "SET":
        return attempt.client.start_set(attempt.keys, [bytes(value) for value in attempt.buffers])
    if command == "LOOKUP":
        return attempt.client.start_exists(attempt.keys)
    return attempt.client.start_delete(attempt.keys)


def _check(
    attempt: Attempt, completion: Completion, command: Command, server: ScriptedServer
) -> None:
    delivery = attempt.delivery
    bools = [index != attempt.position or delivery.meaning == "yes" for index in range(BATCH)]
    if command == "GET":
        check_get(
            completion, attempt.keys, attempt.buffers, bools, untouched=delivery.meaning == "no"
        )
    else:
        all_well = command != "SET" or delivery.meaning == "yes"
        if completion.ok != all_well:
            raise WrongError(
                f"the batch is reported {'whole' if completion.ok else 'failed'}: "
                f"{completion.error or 'no text'}"
            )
        # A SET that stored everything has said so already.
        if completion.bools != bools and not (command == "SET" and completion.bools is None):
            raise WrongError(f"results {completion.bools}, expected {bools}")
    if command == "SET":
        for key, stored in zip(attempt.keys, bools, strict=True):
            if key != attempt.keys[attempt.position] and stored and key not in server.store:
                raise WrongError("a key of the batch that the server would take was never sent")
    if delivery.meaning == "failed":
        if attempt.keys[attempt.position] not in completion.error:
            raise WrongError(f"the error text does not name the key: {completion.error!r}")
        if delivery.words not in completion.error:
            raise WrongError(f"the error text does not quote the server: {completion.error!r}")
    elif completion.error:
        raise WrongError(f"an error text where nothing failed: {completion.error!r}")
    slack = SOCKET_TIMEOUT_MS * 4
    if completion.ms > slack:
        raise WrongError(f"the batch took {completion.ms:.0f} ms, more than {slack} ms")


def _gather(wrong: dict[str, list[str]], total: int) -> str:
    """Return one line: each problem, how often, and where it was seen first."""
    return "; ".join(
        f"{len(names)} of {total} ways (first: {names[0]}): {problem}"
        for problem, names in sorted(wrong.items(), key=lambda item: -len(item[1]))
    )
