"""The name of an image in a registry: HOST[:PORT]/PATH:TAG."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from headrace.errors import PublishError

HOST = re.compile(r"(?:\[[0-9a-f:]+\]|[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::[0-9]{1,5})?")
PATH = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
# The one registry whose API answers under another name than the one that images carry.
API_HOSTS = {"docker.io": "registry-1.docker.io"}
EXAMPLE = "HOST[:PORT]/REPOSITORY:TAG"


@dataclass(frozen=True)
class Reference:
    """A qualified name with a tag.

    Attributes:
        host: with its port, as in the name.
        repository: path below the host.
    """

    host: str
    repository: str
    tag: str

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}"

    def at(self, digest: str) -> str:
        """Return the same repository by digest."""
        return f"{self.host}/{self.repository}@{digest}"

    @property
    def plain_http(self) -> bool:
        """Whether to speak http: only to this machine itself."""
        name = self.host.rpartition(":")[0] if re.search(r":[0-9]+$", self.host) else self.host
        if name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def base_url(self) -> str:
        scheme = "http" if self.plain_http else "https"
        return f"{scheme}://{API_HOSTS.get(self.host, self.host)}/v2/{self.repository}"


def parse_reference(text: str) -> Reference:
    """Read a name to publish under.

    Raises:
        PublishError: it is unqualified, has no repository or no tag, is given by digest, or has a
            character that registries refuse.
    """
    if "://" in text:
        raise _refusal(text, "no scheme")
    if "@" in text:
        raise _refusal(text, "a tag and no digest: the digest is that of the image")
    host, slash, rest = text.partition("/")
    if not slash:
        raise _refusal(text, "a registry host before the repository")
    if not ("." in host or ":" in host or host == "localhost"):
        raise _refusal(text, f"a registry host first, not '{host}': unqualified names are guessed")
    repository, colon, tag = rest.partition(":")
    if not repository:
        raise _refusal(text, "a repository after the host")
    if not HOST.fullmatch(host):
        raise _refusal(text, f"a lower-case host name or address, not '{host}'")
    if not all(PATH.fullmatch(part) for part in repository.split("/")):
        raise _refusal(text, f"lower-case letters, digits and single . _ - in '{repository}'")
    if not colon or not TAG.fullmatch(tag):
        raise _refusal(text, "a tag of letters, digits and . _ -")
    return Reference(host, repository, tag)


def _refusal(text: str, expected: str) -> PublishError:
    return PublishError(f"--to {text}: expected {EXAMPLE} with {expected}")
