"""What of the options can be judged before anything is started or asked."""

from __future__ import annotations

from dataclasses import replace

from headrace.suites.needle.dialect import Dialect, dialect
from headrace.suites.needle.haystack import words_of_file
from headrace.suites.needle.options import Options
from headrace.suites.needle.plan import chosen, plan
from headrace.suites.needle.prompt import check_room, codes
from headrace.suites.needle.score import scripts_of


def check_prompts(options: Options) -> None:
    """Find out whether the chosen prompts can be made, as far as no tokenizer is needed for it.

    Raises:
        ConfigurationError: a pattern of names that matches nothing, a haystack that is no text,
            too many codes, or a length too short for its question.
    """
    everything = plan(options)
    wanted = chosen(everything, options.only)
    speech = wording(options)
    codes(options.seed, len(everything), options.distractors + 1, speech.digits)
    for one in wanted:
        check_room(one, speech, chunk=options.chunk, ranks=options.ranks)


def wording(options: Options) -> Dialect:
    """Return the dialect, with the user's own text between the needles if there is one.

    Raises:
        ConfigurationError: that text cannot be used.
    """
    speech = dialect(options.dialect)
    if options.haystack is None:
        return speech
    words = words_of_file(options.haystack, speech.digits)
    scripts = scripts_of(options.haystack.read_text(encoding="utf-8")) | set(speech.scripts)
    return replace(speech, words=words, scripts=tuple(sorted(scripts)))
