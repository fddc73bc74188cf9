"""Where everything lies in a checkout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigurationError


@dataclass(frozen=True)
class Layout:
    """Paths of one checkout; everything under `build` may be deleted at any time.

    Attributes:
        compiled_in: stands for `work` where a second build has to have the paths of the first.
    """

    root: Path
    compiled_in: Path | None = None

    @classmethod
    def find(cls, start: Path | None = None) -> Layout:
        """Return the layout of the checkout that holds `start` (default: this package's own).

        Raises:
            ConfigurationError: no folder upwards of it holds a pins.toml.
        """
        first = (start or Path(__file__)).resolve()
        for folder in (first, *first.parents):
            if (folder / "pins.toml").is_file():
                return cls(folder)
        raise ConfigurationError(
            f"{first}: expected a headrace checkout, found no pins.toml here or above; "
            "run this from a clone of the repository"
        )

    @property
    def pins(self) -> Path:
        return self.root / "pins.toml"

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    def exclude_locks(self, flavor: str) -> list[Path]:
        """Return the files that name what dependencies ask for and no image of `flavor` holds."""
        return [self.locks / "exclude.txt", self.locks / f"exclude-{flavor}.txt"]

    @property
    def docker(self) -> Path:
        return self.root / "docker"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def work(self) -> Path:
        """Where sources are compiled: nvcc hashes their absolute path into names."""
        return self.compiled_in or self.build / "work"

    @property
    def manifest(self) -> Path:
        return self.build / "manifest.json"

    @property
    def sources(self) -> Path:
        return self.build / "sources"

    @property
    def patched(self) -> Path:
        return self.build / "patched"

    @property
    def logs(self) -> Path:
        return self.build / "log"

    def wheels(self, flavor: str) -> Path:
        return self.build / "wheels" / flavor

    def wheelhouse(self, flavor: str) -> Path:
        return self.build / "wheelhouse" / flavor

    def image(self, flavor: str) -> Path:
        return self.build / "image" / flavor

    @property
    def reports(self) -> Path:
        return self.build / "report"
