"""What names an image for `verify` and `publish`, judged before a daemon is started for it."""

from __future__ import annotations

import re

from headrace.errors import ConfigurationError
from headrace.pipeline.image import read_image
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import FLAVORS


def require_target(layout: Layout, target: str) -> None:
    """Check what can be known of `target` without a daemon.

    A bare word is no name here: docker would add the tag "latest" to it without a word.

    Raises:
        ConfigurationError: it is neither a flavor nor a name with a tag or a digest.
        ImageError: it is a flavor that was not built.
    """
    if target in FLAVORS:
        read_image(layout, target)
        return
    name, at, digest = target.partition("@")
    if at and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ConfigurationError(
            f"{target}: expected sha256: and 64 hexadecimal digits after '{name}@', found "
            f"'{digest}'; give the whole digest"
        )
    if not re.fullmatch(r"[A-Za-z0-9\[]\S*", name) or not (at or "/" in name or ":" in name):
        raise ConfigurationError(
            f"expected a flavor ({', '.join(FLAVORS)}) or an image's name with its tag or "
            f"digest, found '{target}'"
        )
