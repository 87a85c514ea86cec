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
    MapError,
    UnsupportedError,
    VerifierError,
)
from egpu.version import VERSION as __version__

if TYPE_CHECKING:
    from egpu.bpf.object import read_object
    from egpu.maps import UpdateFlag
    from egpu.session import (
        Globals,
        IdleWorkload,
        Link,
        Object,
        ObjectProgram,
        Options,
        PinnedMap,
        RingMemory,
        Session,
        attach,
        open_map,
        run,
        start_idle,
    )
    from egpu.verifier import Policy, verify

_LAZY = {
    "Globals": "egpu.session",
    "IdleWorkload": "egpu.session",
    "Link": "egpu.session",
    "Object": "egpu.session",
    "ObjectProgram": "egpu.session",
    "Options": "egpu.session",
    "PinnedMap": "egpu.session",
    "Policy": "egpu.verifier",
    "RingMemory": "egpu.session",
    "Session": "egpu.session",
    "UpdateFlag": "egpu.maps",
    "attach": "egpu.session",
    "open_map": "egpu.session",
    "read_object": "egpu.bpf.object",
    "run": "egpu.session",
    "start_idle": "egpu.session",
    "verify": "egpu.verifier",
}

__all__ = [
    "AgentError",
    "DeviceFault",
    "EgpuError",
    "Globals",
    "IdleWorkload",
    "InputError",
    "InternalError",
    "Link",
    "MapError",
    "Object",
    "ObjectProgram",
    "Options",
    "PinnedMap",
    "Policy",
    "RingMemory",
    "Session",
    "UnsupportedError",
    "UpdateFlag",
    "VerifierError",
    "__version__",
    "attach",
    "open_map",
    "read_object",
    "run",
    "start_idle",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
