"""Section names: what a program is attached to.

``SEC("kprobe/vectorAdd,ns::*")`` and the like become :class:`AttachPoint` values; ``matches`` says
whether a kernel of an image is meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from egpu.bpf.name_forms import name_forms
from egpu.bpf.program import MEMORY_CAPTURE, AttachKind, AttachPoint, Level
from egpu.errors import InputError, UnsupportedError

_K = AttachKind
_CUDA_PREFIX = "cuda_"  # bpftime: marks GPU programs of objects whose other programs Linux runs
_CLASS = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*$")


@dataclass(frozen=True, slots=True)
class _Row:
    """One form of section name: its words, kind, level, and how it is written in messages."""

    kind: AttachKind
    level: Level
    syntax: str


# fmt: off
_KERNEL_FORMS: dict[str, _Row] = {
    "kprobe":          _Row(_K.ENTRY,         Level.THREAD, "kprobe/<kernel>"),
    "kprobe.warp":     _Row(_K.ENTRY,         Level.WARP,   "kprobe.warp/<kernel>"),
    "kprobe.block":    _Row(_K.ENTRY,         Level.BLOCK,  "kprobe.block/<kernel>"),
    "kretprobe":       _Row(_K.EXIT,          Level.THREAD, "kretprobe/<kernel>"),
    "kretprobe.warp":  _Row(_K.EXIT,          Level.WARP,   "kretprobe.warp/<kernel>"),
    "kretprobe.block": _Row(_K.EXIT,          Level.BLOCK,  "kretprobe.block/<kernel>"),
    "launch":          _Row(_K.LAUNCH,        Level.THREAD, "launch/<kernel>"),
    "launchret":       _Row(_K.LAUNCH_RETURN, Level.THREAD, "launchret/<kernel>"),
}
# fmt: on
_INSTRUCTION = "insn"
_HOST_FORMS: dict[str, AttachKind] = {"uprobe": _K.HOST_ENTRY, "uretprobe": _K.HOST_EXIT}
_EXECUTOR = "executor"
DIRECTLY_RUN = "__directly_run"  # bpftime: kprobe/__directly_run programs are kernels themselves
# Types that the Linux kernel runs (libbpf's section names), by the word before the first slash.
# fmt: off
_LINUX = frozenset({
    "action", "cgroup", "cgroup_skb", "classifier", "fentry", "fentry.s", "fexit",
    "fexit.s", "flow_dissector", "fmod_ret", "fmod_ret.s", "freplace", "iter", "iter.s",
    "kprobe.multi", "kprobe.session", "kretprobe.multi", "kretsyscall", "ksyscall", "lsm",
    "lsm.s", "lsm_cgroup", "lwt_in", "lwt_out", "lwt_seg6local", "lwt_xmit", "netfilter",
    "netkit", "perf_event", "raw_tp", "raw_tp.w", "raw_tracepoint", "raw_tracepoint.w",
    "sk_lookup", "sk_msg", "sk_reuseport", "sk_skb", "socket", "sockops", "struct_ops",
    "struct_ops.s", "syscall", "tc", "tcx", "tp", "tp_btf", "tracepoint", "uprobe.multi",
    "uprobe.multi.s", "uprobe.s", "uprobe.session", "uretprobe.multi", "uretprobe.multi.s",
    "uretprobe.s", "usdt", "usdt.s", "xdp", "xdp.frags",
})
# fmt: on
# bpftime's places that are no kernels; they take part in no comma list.
_BPFTIME: dict[str, AttachPoint] = {
    "__memcapture": AttachPoint(_K.INSTRUCTION, "*", detail=MEMORY_CAPTURE),
    DIRECTLY_RUN: AttachPoint(_K.EXECUTOR, DIRECTLY_RUN),
}


def parse_section(section: str, program: str) -> tuple[AttachPoint, ...]:
    """What ``section`` attaches ``program`` to, one point for each element of a comma list.

    Raises InputError for a section name that does not exist or is incomplete, UnsupportedError for
    forms of libbpf that egpu knows and does not have.
    """
    where = f"program {program!r}, section {section!r}"
    if section.startswith("?"):
        raise UnsupportedError(f"programs that are not loaded by default ('?') at {where}")
    word, _, rest = section.partition("/")
    if word in _KERNEL_FORMS:
        row = _KERNEL_FORMS[word]
        if word == "kprobe" and rest in _BPFTIME:
            return (_BPFTIME[rest],)
        return tuple(
            AttachPoint(row.kind, pattern, row.level)
            for pattern in _patterns(rest, where, row.syntax)
        )
    if word == _INSTRUCTION:
        name, _, kernels = rest.partition("/")
        syntax = "insn/<class>/<kernel>"
        if not _CLASS.match(name):
            raise InputError(f"{name!r} is no instruction class", where=where, hint=syntax)
        return tuple(
            AttachPoint(_K.INSTRUCTION, pattern, detail=name)
            for pattern in _patterns(kernels, where, syntax)
        )
    if word in _HOST_FORMS:
        return (_host(_HOST_FORMS[word], rest, where, word),)
    if word == _EXECUTOR:
        return (AttachPoint(_K.EXECUTOR, rest),)
    if word in _LINUX:
        return (AttachPoint(_K.KERNEL_SPACE, rest, detail=section),)
    raise InputError(f"unknown section {section!r} of program {program!r}", hint=_forms())


def _forms() -> str:
    forms = [row.syntax for row in _KERNEL_FORMS.values()]
    forms += ["insn/<class>/<kernel>", "uprobe/<lib>:<symbol>", "uretprobe/<lib>:<symbol>"]
    return f"there are {', '.join(forms)}, {_EXECUTOR}, and libbpf's names of Linux programs"


def _host(kind: AttachKind, rest: str, where: str, word: str) -> AttachPoint:
    if not rest:
        return AttachPoint(kind, "")  # libbpf: its place is given when it is attached
    library, colon, symbol = rest.rpartition(":")
    if not (colon and library and symbol):
        raise InputError(
            f"{rest!r} names no symbol", where=where, hint=f"write {word}/<lib>:<symbol>"
        )
    return AttachPoint(kind, symbol, detail=rest)


def _patterns(text: str, where: str, syntax: str) -> list[str]:
    """The elements of a comma list, commas inside brackets of C++ names not counting."""
    parts: list[str] = []
    depth = start = 0
    for at, character in enumerate(text):
        if character in "<([":
            depth += 1
        elif character in ">)]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    if depth:
        raise InputError("unbalanced brackets", where=where)
    patterns = [part.strip() for part in parts]
    if not all(patterns):
        raise InputError("names no kernel", where=where, hint=f"write {syntax}")
    for pattern in patterns:
        if pattern in _BPFTIME:
            raise InputError(
                f"{pattern} stands alone", where=where, hint=f'write SEC("kprobe/{pattern}")'
            )
    return patterns


def matches(point: AttachPoint, mangled: str, demangled: str) -> bool:
    """Whether ``point``'s pattern means the kernel of these names.

    A pattern is a name or a glob (``*``, ``?``, ``[…]``).  It is held against the mangled name, the
    demangled name, the latter without arguments, without template arguments, and without scope.
    bpftime's ``cuda_`` before a name is ignored where the whole pattern does not match.
    """
    if point.pattern == "*":
        return True
    names = (mangled, *name_forms(demangled))
    patterns = [point.pattern]
    if point.pattern.startswith(_CUDA_PREFIX):
        patterns.append(point.pattern.removeprefix(_CUDA_PREFIX))
    return any(
        pattern == name or fnmatchcase(name, pattern) for pattern in patterns for name in names
    )
