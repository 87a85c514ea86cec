"""eBPF programs inside GPU kernels of unmodified programs.

``egpu.run(argv, programs=...)`` starts a workload under the agent; see ``egpu.session``.  Importing
the package loads no native library and starts nothing: names are resolved when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from egpu.errors import (
    AgentError,
    DeviceFault,
    EgpuError,
    InputError,
    InternalError,
    UnsupportedError,
    VerifierError,
)
from egpu.version import VERSION as __version__

if TYPE_CHECKING:
    from egpu.bpf.object import read_object
    from egpu.session import Options, Session, run
    from egpu.verifier import Policy, verify

_LAZY = {
    "Options": "egpu.session",
    "Policy": "egpu.verifier",
    "Session": "egpu.session",
    "read_object": "egpu.bpf.object",
    "run": "egpu.session",
    "verify": "egpu.verifier",
}

__all__ = [
    "AgentError",
    "DeviceFault",
    "EgpuError",
    "InputError",
    "InternalError",
    "Options",
    "Policy",
    "Session",
    "UnsupportedError",
    "VerifierError",
    "__version__",
    "read_object",
    "run",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
