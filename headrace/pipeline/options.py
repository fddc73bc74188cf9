"""Options and output that the commands of `build.py` share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel

Flavor = Annotated[str, typer.Option(help="Which distribution: cpu or sm103.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Project = Annotated[str, typer.Argument(help="A patched project, e.g. lmcache.")]
BaseImage = Annotated[
    str,
    typer.Option(
        envvar="BASE_IMAGE",
        help="Base from a registry, NAME@sha256:…; default: made from the locked Debian packages.",
    ),
]


Module = Annotated[
    Literal["jit", "aot"],
    typer.Option(help="sm103: FlashInfer's kernels compiled at the first start, or here."),
]

NeedleResults = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        show_default=False,
        help="sm103: the folder that 'headrace needle … --image IMAGE@DIGEST --out FOLDER' wrote "
        "against a live engine of this image.",
    ),
]


def emit(value: Any, as_json: bool) -> None:
    """Print `value` on stdout as JSON if a machine asked for it."""
    if as_json:
        typer.echo(json.dumps(_plain(value), indent=1, sort_keys=True))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
