"""Read pins.toml: every upstream by name, version, kind and sha256."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from headrace.errors import ConfigurationError
from headrace.pipeline.textfile import read_utf8

Kind = Literal["pypi sdist", "pypi wheel", "pytorch cpu", "flashinfer index", "debian suite"]
Sha256 = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
FLAVORS = ("cpu", "sm103")
CORRECT = "; correct it, then run 'python build.py check'"


class Pin(BaseModel):
    """One upstream at one version.

    `sha256` and `size` are those of `file`; an empty `sha256` means "not locked yet". A
    "debian suite" has a `lock` in their place. `only_for` names the one stage that uses the pin and
    brings it; everything else does without. `compile_for` is the GPU that its build is asked
    for, in that build's own words; `device_code` names the GPU architectures of which the
    component's libraries must hold at least one.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda s: s.replace("_", "-")
    )

    id: str
    name: str
    version: str = Field(min_length=1)
    kind: Kind
    file: str = Field(default="", pattern=r"^[A-Za-z0-9_.+-]*$")
    sha256: Sha256 = ""
    size: int = Field(default=0, ge=0)
    lock: str = ""
    only_for: str = ""
    license: str = Field(min_length=1)
    flavors: frozenset[Literal["cpu", "sm103"]] = Field(min_length=1)
    patched: bool = False
    compile_for: str = ""
    device_code: tuple[str, ...] = ()

    @field_validator("device_code")
    @classmethod
    def _some_code(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        # With none, no library of the component would be looked at.
        if not names:
            raise ValueError("expected at least one architecture such as sm_103a")
        return names

    @model_validator(mode="after")
    def _one_source(self) -> Pin:
        if self.kind == "debian suite":
            if not self.lock or self.file or self.sha256:
                raise ValueError("a 'debian suite' has a lock, and no file or sha256")
        elif not self.file or self.lock:
            raise ValueError("expected a file name, and no lock")
        elif self.sha256 and not self.size:
            raise ValueError("expected size in bytes beside sha256")
        if self.patched and self.kind == "debian suite":
            raise ValueError("a 'debian suite' cannot be patched")
        return self

    @property
    def locked(self) -> bool:
        return bool(self.sha256) or self.kind == "debian suite"

    @property
    def folder(self) -> str:
        """Name of this project's unpacked tree, e.g. "lmcache-0.5.5"."""
        return f"{self.id}-{self.version}"


class Pins(BaseModel):
    """All pins of one file, by table name."""

    model_config = ConfigDict(frozen=True)

    path: Path
    projects: dict[str, Pin]

    def of_flavor(self, flavor: str) -> list[Pin]:
        """Return the pins that `flavor` needs, in file order.

        Raises:
            ConfigurationError: there is no such flavor.
        """
        require_flavor(flavor)
        return [pin for pin in self.projects.values() if flavor in pin.flavors]

    def patched_projects(self, flavor: str | None = None) -> list[Pin]:
        """Return the pins that have a patch series, of one flavor or of all."""
        chosen = self.of_flavor(flavor) if flavor else list(self.projects.values())
        return [pin for pin in chosen if pin.patched]

    def get(self, project: str) -> Pin:
        """Return one pin.

        Raises:
            ConfigurationError: no table has that name.
        """
        if project not in self.projects:
            raise ConfigurationError(
                f"{self.path}: expected a table [{project}], found none; there are "
                f"{', '.join(self.projects)}; run 'python build.py check'"
            )
        return self.projects[project]

    def get_patched(self, project: str) -> Pin:
        """Return the pin of a project that has a patch series.

        Raises:
            ConfigurationError: there is no such project, or it is used as it is.
        """
        pin = self.get(project)
        if not pin.patched:
            names = ", ".join(other.id for other in self.patched_projects())
            raise ConfigurationError(
                f"{self.path}: expected a project with `patched = true`, one of {names}, "
                f"found '{project}'"
            )
        return pin

    def unlocked(self, flavor: str) -> list[Pin]:
        """Return the pins of `flavor` whose hash is not known yet."""
        return [pin for pin in self.of_flavor(flavor) if not pin.locked]


def require_flavor(flavor: str) -> None:
    """Raise ConfigurationError unless `flavor` is one that headrace builds."""
    if flavor not in FLAVORS:
        raise ConfigurationError(
            f"--flavor: expected one of {', '.join(FLAVORS)}, found '{flavor}'"
        )


def load_pins(path: Path) -> Pins:
    """Read and validate a pins file.

    Raises:
        ConfigurationError: it is missing, not UTF-8, not TOML, or a pin breaks a rule; the message
            names the file, the line and the field.
    """
    try:
        text = read_utf8(path)
        tables = tomllib.loads(text)
    except FileNotFoundError as missing:
        raise ConfigurationError(
            f"{path}: expected the pins of this checkout, found no file; restore it with git"
        ) from missing
    except tomllib.TOMLDecodeError as broken:
        raise ConfigurationError(f"{path}: expected TOML, found {broken}{CORRECT}") from broken
    projects: dict[str, Pin] = {}
    for key, table in tables.items():
        line = _line_of(text, key)
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"{path}:{line}: expected a table [{key}], found {table!r}{CORRECT}"
            )
        try:
            projects[key] = Pin.model_validate({"id": key, "name": key, **table})
        except ValidationError as invalid:
            first = invalid.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "pin"
            reason = first["msg"].removeprefix("Value error, ")
            found = "" if isinstance(first["input"], dict) else f", found {first['input']!r}"
            raise ConfigurationError(
                f"{path}:{line}: [{key}] {field}: {reason}{found}{CORRECT}"
            ) from invalid
    if not projects:
        raise ConfigurationError(f"{path}: expected at least one pin, found none{CORRECT}")
    return Pins(path=path, projects=projects)


def _line_of(text: str, table: str) -> int:
    lines = text.splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.strip() == f"[{table}]"), 1)
