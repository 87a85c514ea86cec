"""Starting a workload with the agent inside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from egpu.errors import AgentError, InputError

AGENT_NAME = "libegpu_agent.so"
# Environment of the agent; children inherit it.
SOCKET_VARIABLE = "EGPU_SOCKET"
NO_FOLLOW_VARIABLE = "EGPU_NO_FOLLOW"  # the only pid that is served


def agent_library() -> Path:
    """The built agent; AgentError says how to build it."""
    path = Path(__file__).resolve().parents[1] / "_native" / AGENT_NAME
    if not path.is_file():
        raise AgentError(
            f"the agent is not built: {path} is missing",
            hint="install egpu, or in a source tree: cmake -S native -B build/native && "
            "cmake --build build/native && cmake --install build/native --prefix src",
        )
    return path


def agent_environment(
    socket_path: Path, base: Mapping[str, str], *, library: Path | None = None
) -> dict[str, str]:
    """``base`` plus what brings the agent in.  An LD_PRELOAD that is there stays, behind ours."""
    agent = str(library or agent_library())
    if any(mark in agent for mark in (" ", ":")):
        raise AgentError(f"LD_PRELOAD cannot hold the path {agent}: it has a space or a colon")
    preload = base.get("LD_PRELOAD", "")
    result = {name: value for name, value in base.items() if name != NO_FOLLOW_VARIABLE}
    result["LD_PRELOAD"] = f"{agent}:{preload}" if preload else agent
    result[SOCKET_VARIABLE] = str(socket_path)
    return result


def launch(
    argv: Sequence[str],
    socket_path: Path,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    follow: bool = True,
    library: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts ``argv`` with the agent, which connects to ``socket_path`` at cuInit.

    Without ``follow`` only the started process is served, through exec but not its children.
    ``environment`` is added to this process's.  ``library`` is an
    agent elsewhere.  InputError if the command cannot be started.
    """
    if not argv:
        raise InputError("no command to start", usage=True)
    base = {**os.environ, **(environment or {})}
    variables = agent_environment(socket_path, base, library=library)
    command = list(argv)
    if not follow:
        # The pid is known only after the fork: a shell sets it and becomes the command.
        script = f'{NO_FOLLOW_VARIABLE}=$$; export {NO_FOLLOW_VARIABLE}; exec "$@"'
        command = ["/bin/sh", "-c", script, "sh", *command]
    try:
        return subprocess.Popen(
            command, env=variables, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr
        )
    except (OSError, ValueError) as error:  # ValueError: a zero byte in an argument
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot start it: {reason}", where=argv[0]) from error
