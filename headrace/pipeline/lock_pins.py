"""Write the hash of what an index serves into pins.toml, for pins that have none yet."""

from __future__ import annotations

from headrace.console import disk_error, say
from headrace.errors import ConfigurationError, HeadraceError, SourceError
from headrace.pipeline import sources
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import write_atomically
from headrace.pipeline.pins import Pin, load_pins


def lock_pins(layout: Layout) -> list[str]:
    """Lock every pin that has no sha256 and whose file can be had here; return their names.

    The hash is the first one that is seen, so look at the file before it is committed. What cannot
    be had from here stays as it is, and is told.

    Raises:
        ConfigurationError: pins.toml does not load, or is not written as `lock` expects it.
        MachineError: it cannot be written.
    """
    done = []
    for pin in load_pins(layout.pins).projects.values():
        if pin.locked:
            continue
        try:
            sha256, size = sources.download_unlocked(layout, pin)
        except HeadraceError as missing:
            say(f"[{pin.id}] stays without a sha256: {missing}")
            continue
        text = layout.pins.read_text(encoding="utf-8")
        try:
            write_atomically(layout.pins, with_hash(text, pin, sha256, size))
        except OSError as failure:
            raise disk_error(failure, layout.pins) from failure
        say(f"[{pin.id}] {pin.file}: sha256 {sha256}, {size} bytes")
        done.append(pin.id)
    return done


def require_locked(layout: Layout) -> None:
    """Raise SourceError while a pin has no sha256; it was told why."""
    if names := [pin.id for pin in load_pins(layout.pins).projects.values() if not pin.locked]:
        raise SourceError(
            f"{layout.pins}: expected a sha256 for {', '.join(names)}, found none; run "
            "`python build.py lock pins` on a machine that reaches what serves it"
        )


def with_hash(text: str, pin: Pin, sha256: str, size: int) -> str:
    """Return the text of a pins file with the hash and size of one pin in place of `sha256 = ""`.

    Raises:
        ConfigurationError: the pin's table has no such line.
    """
    before, heading, rest = text.partition(f"[{pin.id}]\n")
    table, following, after = rest.partition("\n[")
    if not heading or 'sha256 = ""' not in table.split("\n"):
        raise ConfigurationError(
            f"pins.toml: [{pin.id}]: expected the line 'sha256 = \"\"', found none; "
            "write it so below the table's name alone, and run `python build.py lock pins` again"
        )
    lines = [
        f'sha256 = "{sha256}"\nsize = {size}' if line == 'sha256 = ""' else line
        for line in table.split("\n")
        if not line.startswith("size =")
    ]
    return before + heading + "\n".join(lines) + following + after
