"""The image runs as an ordinary user that cannot change the code that was proved."""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path

from headrace.proof.answer import Answer, Request


def prove(request: Request) -> Answer:
    """Name a privileged user id, and every folder of code that the user may write to."""
    answer = Answer()
    user, group = os.getuid(), os.getgid()
    answer.facts.update(uid=user, gid=group)
    if user == 0 or os.geteuid() == 0:
        answer.problems.append("runs as root (user id 0)")
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site_folders()}
    for folder in sorted(folders):
        if os.access(folder, os.W_OK):
            answer.problems.append(f"{folder}: user {user} can write to the installed code")
    answer.facts["code"] = sorted(folders)
    return answer


def site_folders() -> list[str]:
    """Return the folders that `site` puts on the path, the user's own among them."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [folder for folder in [*site.getsitepackages(), *user] if Path(folder).is_dir()]
