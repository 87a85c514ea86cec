"""The text of a probe that one lane of a warp runs, as ``ptxas`` makes the least of it.

What is the same in all lanes ``ptxas`` adds up over the lanes that are there.  It does not know
that there is one: a dozen instructions for nothing.  So the lane is chosen in a way that it knows,
or addresses get something that differs by lane for all that it knows.
"""

from __future__ import annotations

import re

from egpu.bpf.program import AttachKind, Level
from egpu.codegen.device_code import DeviceCode, only_per_sm
from egpu.splice.ptx_names import AddedNames

ELECT_ARCH, ELECT_VERSION = 90, (8, 0)  # elect.sync (PTX ISA 8.0, section 9.7.14.14)


def for_one_lane(code: DeviceCode, body: str, names: AddedNames) -> str:
    """The resolved text of a probe, whose lane is chosen by comparing masks or indices."""
    if code.level is Level.THREAD:
        return body
    body = _early(code.level, body)
    chosen = _CHOSEN.search(body)
    if chosen is None or only_per_sm(code.relocations):
        return body  # addresses in per-SM maps differ by lane already (codegen.primitives)
    # Zero is what chose the lane: which lanes below it are there, or its indices.
    zero = f"\n.reg .b64 %egpu_zero;\ncvt.u64.u32 %egpu_zero, {chosen['zero']};"
    base = re.compile(rf"ld\.param\.u64 ([%$\w]+), \[{re.escape(names.launch)}\+0\];")
    rest = base.sub(r"\g<0> add.s64 \1, \1, %egpu_zero;", body[chosen.end() :])
    return body[: chosen.end()] + zero + rest


def elects(body: str) -> bool:
    """Whether any lane is as good as the first one to run this probe, whose code no lane leaves.

    Where the other lanes went around it, ``ptxas`` would take everything for uniform, which in
    an exit probe must not live across branches.
    """
    chosen = _GUARDING.search(body)
    return chosen is not None and not _OWN_LANE.search(body, chosen.end())


def elected(body: str) -> str:
    """The same probe run by the lane that the hardware elects, in one instruction.

    ``ptxas`` knows that it is one.  Which one it is PTX does not say, so it is for probes that
    ``elects`` has found to have nothing to do with their lane.
    """
    return _GUARDING.sub(r"elect.sync _|\g<go>, \g<mask>;\nmov.b32 \g<zero>, 0;", body, count=1)


def same_in_all(code: DeviceCode, body: str) -> bool:
    """Whether lanes that run the resolved text of a program of threads together all add the same
    at the same place, and do nothing else."""
    lines = [line for line in body.splitlines() if line.strip()]
    adds = any(_ADDITION.fullmatch(line) for line in lines)
    only = all(_SAME.fullmatch(line) or _ADDITION.fullmatch(line) for line in lines)
    return code.level is Level.THREAD and only_per_sm(code.relocations) and adds and only


def added_by_one(kind: AttachKind, body: str) -> str:
    """The same additions made by one lane for all that are there, as ``same_in_all`` has found.

    ``ptxas`` does so itself, with twice as many instructions.  A mask that lanes meet with is in an
    ordinary register, where they are counted sooner.
    """
    picked = _PICK.sub(r"mov.u32 \g<into>, %clock;", body)
    added = _BEGIN_ADDING + _ADDITION.sub(lambda match: _of_all(body, match), picked)
    return f"{added}\nbar.warp.sync %egpu_here;" if kind is AttachKind.ENTRY else added


_SAME = re.compile(
    r"\s*(?:\.reg .*|[{}]|\$\w+:|ld\.param\.\w+ [%$\w]+, \[[%$\w]+(?:\+\d+)?\];"
    r"|(?:mov|cvt|add|sub|mul|mad|and|or|xor|not|neg|shl|shr|min|max)\.[\w.]+ "
    r"(?:(?!%(?:tid|laneid|lanemask\w*|clock\w*|globaltimer\w*|pm\d)\b)[^;{}@\[\]])*;)\s*"
)
_ADDITION = re.compile(
    r"red\.relaxed\.gpu\.global\.add\.u64 \[(?P<place>[%$\w]+)\], (?P<value>[%$\w]+);"
)
_BEGIN_ADDING = """.reg .pred %egpu_one;
.reg .b32 %egpu_here, %egpu_many;
.reg .b64 %egpu_sum;
activemask.b32 %egpu_here;
elect.sync _|%egpu_one, %egpu_here;
popc.b32 %egpu_many, %egpu_here;
"""
# Which copy of a counter is used does not matter (codegen.primitives); the clock is read sooner.
_PICK = re.compile(r"mov\.b32\s+(?P<into>[%$\w]+), %warpid;")
_CONSTANT = r"mov\.[bu]64 {}, (?P<value>\d+);"
_WORD = 1 << 32


def _of_all(body: str, addition: re.Match[str]) -> str:
    """The addition of what as many lanes add as are there.  ``ptxas`` multiplies by one, too."""
    value = addition["value"]
    constant = re.search(_CONSTANT.format(re.escape(value)), body)
    known = int(constant["value"]) if constant else _WORD
    if known == 1:
        sum_up = "cvt.u64.u32 %egpu_sum, %egpu_many;"
    elif known < _WORD:
        sum_up = f"mul.wide.u32 %egpu_sum, %egpu_many, {known};"
    else:
        sum_up = f"cvt.u64.u32 %egpu_sum, %egpu_many;\nmul.lo.u64 %egpu_sum, %egpu_sum, {value};"
    add = f"red.relaxed.gpu.global.add.u64 [{addition['place']}], %egpu_sum;"
    return f"{sum_up}\n@%egpu_one {add}"


def _early(level: Level, body: str) -> str:
    """Special registers that take long to read and never change are read while the lane is chosen.
    Of a block's warps most would read them for nothing."""
    chosen = _CHOSEN.search(body)
    if level is not Level.WARP or chosen is None:
        return body
    head, rest = body[: chosen.start()], body[chosen.end() :]
    head += "".join(f"{each[0]}\n" for each in _SLOW.finditer(rest))
    return head + chosen[0] + _SLOW.sub("", rest)


_SLOW = re.compile(r"mov\.u32\s+[%$\w]+, %(?:smid|warpid);")
# How a probe chooses the lane that runs it (codegen.probe): what is left of others decides.
_CHOSEN = re.compile(r"setp\.ne\.b32\s+[%$\w]+_go, (?P<zero>[%$\w]+), 0;\n@[%$\w]+_go bra [%$\w]+;")
_GUARDING = re.compile(
    r"mov\.u32 (?P<zero>[%$\w]+), %lanemask_lt;\n"
    r"and\.b32 (?P=zero), (?P=zero), (?P<mask>[%$\w]+);\n"
    r"setp\.eq\.b32 (?P<go>[%$\w]+), (?P=zero), 0;"
)
_OWN_LANE = re.compile(r"%(?:tid|laneid|lanemask)\b|%lanemask_\w+")
