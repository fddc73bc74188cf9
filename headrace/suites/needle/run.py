"""Runs the suite: plan, prompts, states, faults, logs, and the files that tell of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from headrace.console import say
from headrace.errors import EndpointError, PromptTooLongError, ShardError
from headrace.suites.needle.ahead import check_prompts, wording
from headrace.suites.needle.arms import ARMS, stopped_by_command
from headrace.suites.needle.cells import Cell
from headrace.suites.needle.client import Endpoint
from headrace.suites.needle.dialect import Dialect
from headrace.suites.needle.faults import check_faults, run_arm
from headrace.suites.needle.logs import LogWatch
from headrace.suites.needle.options import SUITE, Options
from headrace.suites.needle.overall import distances, log_cases
from headrace.suites.needle.plan import Wanted, chosen, plan
from headrace.suites.needle.prompt import Prompt, build, codes, register
from headrace.suites.needle.restart import check, restart
from headrace.suites.needle.shards import Shards
from headrace.suites.needle.spoilt import ask_spoilt, exchange
from headrace.suites.needle.states import Asker
from headrace.suites.results import CaseResult


@dataclass(frozen=True)
class ShardRow:
    """What one server got and gave: chunks stored cold, and GETs of the state L2.

    Attributes:
        who: the server, with the rank.
        stored, expected: chunks.
        gets, expected_gets: commands.
    """

    who: str
    stored: int
    expected: int
    gets: int
    expected_gets: int


@dataclass(frozen=True)
class Outcome:
    """All that the reports need."""

    options: Options
    model: str
    cells: Sequence[Cell]
    shards: Sequence[ShardRow]
    whole: Sequence[CaseResult]

    @property
    def results(self) -> list[CaseResult]:
        """The suite's cases: every cell, then what is judged over all of them."""
        return [*(cell.result() for cell in self.cells), *self.whole]


def run_suite(
    options: Options,
    on_result: Callable[[CaseResult], None],
    restarter: Callable[[Endpoint], None] | None = None,
    away: Callable[[int], AbstractContextManager[None]] | None = None,
) -> Outcome:
    """Run the chosen prompts through all states and return what was found.

    Args:
        on_result: called with each case as it ends.
        restarter: restarts the engine; None to do it as `options.restart` says.
        away: stops one rank's server for a block; None to do it as `options.stop_shard` says.

    An endpoint or a server that fails after the first answer ends the run with the void case
    "run/interrupted"; what was found until then is kept.

    Raises:
        ConfigurationError: an option cannot be followed.
        EndpointError, ModelNameError, NoCachedTokensError, PromptTooLongError, ShardError: the
            endpoint or a server cannot be used as it is.
    """
    if restarter is None:
        check(options.restart)
        restarter = partial(restart, options.restart)
    check_faults(options, can_stop=away is not None)
    check_prompts(options)
    everything = plan(options)
    wanted = chosen(everything, options.only)
    logs = LogWatch(options.logs)
    logs.begin()
    with ExitStack() as stack:
        shards = Shards(options.servers(), options.ranks)
        stack.callback(shards.close)
        endpoint = stack.enter_context(
            Endpoint(options.endpoint, options.model, options.patience)
        )  # fmt: skip
        shards.counters()
        endpoint.greet()
        _warn(options)
        speech = wording(options)
        _check_lengths(wanted, endpoint, speech.answer_tokens)
        prompts = _prompts(options, everything, wanted, endpoint, speech)
        asker = Asker(
            options, endpoint, shards, speech, register(prompts), logs,
            away or partial(stopped_by_command, options, shards),
            lambda cell: on_result(cell.result()),
        )  # fmt: skip
        rows: list[ShardRow] = []
        whole: list[CaseResult] = []
        try:
            rows = _states(asker, prompts, restarter, whole)
        except (EndpointError, ShardError) as failure:
            if not any(cell.evidence for cell in asker.cells):
                raise
            whole.append(_interrupted(failure))
    whole += [*distances(asker.cells), *log_cases(logs)]
    for result in whole:
        on_result(result)
    return Outcome(options, endpoint.model, asker.cells, rows, whole)


def _interrupted(failure: EndpointError | ShardError) -> CaseResult:
    say(f"{SUITE}: interrupted: {failure}")
    return CaseResult(
        SUITE, "run/interrupted", "every prompt asked in every state", str(failure), "void", 0.0
    )


def _warn(options: Options) -> None:
    """Say before hours of prompts what will be void after them."""
    for found, option, what in (
        (options.valkey, "--valkey", "no answer from L2 is proved"),
        (options.logs, "--engine-log", "the engine's log is not judged"),
    ):
        if not found:
            say(f"{SUITE}: without {option} {what}, and the run ends void")


def _check_lengths(wanted: Sequence[Wanted], endpoint: Endpoint, answer: int) -> None:
    """Raise PromptTooLongError if the model does not take a prompt and its answer."""
    longest = max(wanted, key=lambda each: each.length)
    if endpoint.limit is not None and longest.length + answer > endpoint.limit:
        raise PromptTooLongError(
            f"{longest.name}: expected at most {endpoint.limit - answer} tokens beside an answer "
            f"of {answer} ({endpoint.url} takes {endpoint.limit}), found {longest.length}; "
            "lower --lengths, or start the engine with a larger --max-model-len"
        )


def _prompts(
    options: Options,
    everything: Sequence[Wanted],
    wanted: Sequence[Wanted],
    endpoint: Endpoint,
    speech: Dialect,
) -> list[Prompt]:
    each = options.distractors + 1
    drawn = codes(options.seed, len(everything), each, speech.digits)
    return [
        build(
            one, speech, endpoint.encode, drawn[one.number],
            seed=options.seed, chunk=options.chunk, ranks=options.ranks,
        )
        for one in wanted
    ]  # fmt: skip


def _states(
    asker: Asker,
    prompts: Sequence[Prompt],
    restarter: Callable[[Endpoint], None],
    controls: list[CaseResult],
) -> list[ShardRow]:
    """Ask everything; `controls` gets the cases of the negative controls as soon as they end."""
    logs = asker.logs
    plain = [prompt for prompt in prompts if prompt.wanted.kind not in ("fault", "spoilt")]
    whole = [prompt for prompt in plain if not prompt.wanted.brief]
    before = asker.shards.counters()
    for prompt in prompts:
        asker.ask(prompt, "cold")
    stored = asker.settle(before, prompts)
    if whole:
        asker.endpoint.forget_own_prefixes()
    for prompt in whole:
        asker.ask(prompt, "L1")
    logs.read()
    spoilt = [prompt for prompt in prompts if prompt.wanted.kind == "spoilt"]
    failure = exchange(asker, spoilt) if len(spoilt) > 1 else "the other prompt was left out"
    restarter(asker.endpoint)
    logs.skip()
    for prompt in plain:
        asker.ask(prompt, "L2")
    for prompt in whole:
        asker.ask(prompt, "control")
    controls += ask_spoilt(asker, spoilt, failure)
    logs.read()
    # An arm makes an engine complain, rightly. It must not free anything twice.
    logs.only = ("double frees",)
    faults = {
        prompt.name.removeprefix("fault-"): prompt
        for prompt in prompts
        if prompt.wanted.kind == "fault"
    }
    for arm in (each for each in ARMS if each in faults):
        run_arm(asker, arm, faults[arm])
    logs.read()
    return _shard_rows(asker, prompts, plain, [each.keys for each in stored])


def _shard_rows(
    asker: Asker, prompts: Sequence[Prompt], plain: Sequence[Prompt], stored: Sequence[int]
) -> list[ShardRow]:
    seen = [cell.evidence for cell in asker.cells if cell.state == "L2" and cell.evidence]

    def chunks(of: Sequence[Prompt], number: int) -> int:
        return sum(asker.shards.expected(prompt)[number] for prompt in of)

    return [
        ShardRow(
            f"{asker.shards.who(number)} ({address})", stored[number], chunks(prompts, number),
            sum(each.gets[number] for each in seen), chunks(plain, number),
        )
        for number, address in enumerate(asker.shards.addresses)
    ]  # fmt: skip
