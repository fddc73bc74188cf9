"""Ask a registry what it holds, and tag what it holds: the parts of the OCI API that skopeo lacks.

Credentials come from docker's own configuration and go into one header; nothing prints them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from headrace.errors import MachineError, PublishError
from headrace.pipeline.oci import MANIFEST
from headrace.pipeline.reference import Reference

ANSWER_S = 60.0
HELPER_S = 30.0
# docker keeps the login of its own registry under the address of an older one.
LOGIN_NAMES = {"docker.io": "https://index.docker.io/v1/"}
CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')


class Registry:
    """A session with the repository of one reference.

    Every method raises PublishError for an answer that the API does not define, and MachineError
    if the registry cannot be reached.
    """

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.client = httpx.Client(timeout=ANSWER_S, follow_redirects=True)
        self.authorization = ""

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()

    def tagged_digest(self) -> str:
        """Return the digest behind the reference's tag, "" if there is no such tag."""
        reply = self._send("GET", f"manifests/{self.reference.tag}")
        if reply.status_code == httpx.codes.NOT_FOUND:
            return ""
        self._expect(reply, httpx.codes.OK, f"tag {self.reference.tag}")
        return f"sha256:{hashlib.sha256(reply.content).hexdigest()}"

    def manifest(self, digest: str) -> bytes:
        """Return the manifest's bytes, b"" if the registry does not hold it.

        Raises:
            PublishError: the bytes it serves under `digest` are others.
        """
        reply = self._send("GET", f"manifests/{digest}")
        if reply.status_code == httpx.codes.NOT_FOUND:
            return b""
        self._expect(reply, httpx.codes.OK, digest)
        found = f"sha256:{hashlib.sha256(reply.content).hexdigest()}"
        if found != digest:
            raise PublishError(f"{self.reference.at(digest)}: expected {digest}, found {found}")
        return reply.content

    def blob_size(self, digest: str) -> int:
        """Return the size in bytes that the registry gives for a blob, -1 if it has none."""
        reply = self._send("HEAD", f"blobs/{digest}")
        if reply.status_code == httpx.codes.NOT_FOUND:
            return -1
        self._expect(reply, httpx.codes.OK, digest)
        return int(reply.headers.get("Content-Length", -1))

    def tag(self, manifest: bytes) -> None:
        """Point the reference's tag at `manifest`, which the registry holds."""
        reply = self._send(
            "PUT",
            f"manifests/{self.reference.tag}",
            content=manifest,
            headers={"Content-Type": MANIFEST},
        )
        self._expect(reply, httpx.codes.CREATED, f"tag {self.reference.tag}")

    def _send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        url = f"{self.reference.base_url}/{path}"
        wanted = {"Accept": MANIFEST, **(headers or {})}
        try:
            reply = self._once(method, url, content, wanted)
            if reply.status_code == httpx.codes.UNAUTHORIZED:
                self.authorization = self._authorize(reply.headers.get("WWW-Authenticate", ""))
                reply = self._once(method, url, content, wanted)
        except httpx.HTTPError as failure:
            raise MachineError(
                f"{self.reference.host}: expected a registry that answers, found {failure}"
            ) from failure
        return reply

    def _once(
        self, method: str, url: str, content: bytes | None, headers: Mapping[str, str]
    ) -> httpx.Response:
        secret = {"Authorization": self.authorization} if self.authorization else {}
        return self.client.request(method, url, content=content, headers={**headers, **secret})

    def _authorize(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        name, password = docker_credentials(self.reference.host)
        basic = base64.b64encode(f"{name}:{password}".encode()).decode() if name else ""
        if scheme.lower() == "basic":
            if not basic:
                raise PublishError(
                    f"{self.reference.host}: expected credentials in docker's configuration, found "
                    f"none; run 'docker login {self.reference.host}'"
                )
            return f"Basic {basic}"
        fields = dict(CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in fields:
            raise PublishError(f"{self.reference.host}: unknown authentication scheme '{scheme}'")
        realm = fields["realm"]
        if basic and not (realm.startswith("https://") or self.reference.plain_http):
            raise PublishError(f"{self.reference.host}: its token service speaks no TLS: {realm}")
        query = {
            "service": fields.get("service", ""),
            "scope": f"repository:{self.reference.repository}:pull,push",
        }
        headers = {"Authorization": f"Basic {basic}"} if basic else {}
        reply = self.client.get(realm, params=query, headers=headers)
        self._expect(reply, httpx.codes.OK, "token")
        answer: dict[str, Any] = reply.json()
        return f"Bearer {answer.get('token') or answer.get('access_token') or ''}"

    def _expect(self, reply: httpx.Response, status: int, what: str) -> None:
        if reply.status_code != status:
            raise PublishError(
                f"{self.reference.host}/{self.reference.repository}: {what}: expected status "
                f"{status}, found {reply.status_code}"
            )


def docker_config() -> Path:
    """Return where docker keeps its logins."""
    folder = os.environ.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def docker_credentials(host: str) -> tuple[str, str]:
    """Return user and password for `host` as `docker login` stored them, ("", "") if it did not."""
    try:
        config: dict[str, Any] = json.loads(docker_config().read_bytes())
    except FileNotFoundError:
        return "", ""
    except ValueError as broken:
        raise PublishError(f"{docker_config()}: expected JSON, found {broken}") from broken
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if helper:
        return _from_helper(str(helper), LOGIN_NAMES.get(host, host))
    stored = config.get("auths", {}).get(LOGIN_NAMES.get(host, host), {}).get("auth", "")
    name, _, password = base64.b64decode(stored).decode().partition(":")
    return name, password


def _from_helper(helper: str, host: str) -> tuple[str, str]:
    command = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [command, "get"],
            input=host,
            capture_output=True,
            text=True,
            timeout=HELPER_S,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as failure:
        raise MachineError(f"{command}: expected an answer, found {failure}") from failure
    if done.returncode != 0:
        # It says on stdout that it has none; the exit status alone is all we repeat.
        return "", ""
    answer = json.loads(done.stdout)
    return str(answer.get("Username", "")), str(answer.get("Secret", ""))
