"""What the device library stands on: one small function per machine for everything that LLVM has no
instruction for, or whose scope and order it would drop.

Both tables define the same names.  On PTX they are inline assembly (PTX ISA 9.0; sections named),
on x86-64 LLVM atomics and the answers of a device with one SM, one warp and one lane.
``PURE`` assembly may be merged and dropped; the rest keeps its place.
"""

from __future__ import annotations

import enum

from egpu.codegen.targets import Machine

PURE = "nounwind willreturn memory(none)"
# Convergent, as some of them reach warp-wide assembly: LLVM must not move or double their calls
# before they are inlined; what holds no such assembly loses the attribute by itself.
ATTRIBUTES = "alwaysinline convergent nounwind"
PREFIX = "egpu."
# Registers in which a probe keeps the lanes that came to its site, and what chose one of them
# (which lanes below it are there: none).  No PTX registers.
SITE_MASK = "%egpu_site_mask"
CHOSEN = "%egpu_chosen"


def _function(name: str, result: str, parameters: str, body: str) -> str:
    return f"define internal {result} @{PREFIX}{name}({parameters}) {ATTRIBUTES} {{\n{body}\n}}\n"


def _special(name: str, kind: str, register: str, *, pure: bool) -> str:
    """Read a special register (section 10)."""
    constraint = "l" if kind == "i64" else "r"
    asm = f"mov.{kind.replace('i', 'u')} $0, {register};"
    kind = kind.replace("b", "i")
    effect, attributes = ("", PURE) if pure else ("sideeffect ", "nounwind")
    return _function(
        name,
        kind,
        "",
        f'  %r = call {kind} asm {effect}"{asm}", "={constraint}"() {attributes}\n  ret {kind} %r',
    )


def _asm(name: str, result: str, parameters: str, asm: str, *constraints: str) -> str:
    """A function that is one ordered piece of assembly over its parameters; what follows the
    constraints are attributes."""
    operands, *more = constraints
    call = f'call {result} asm sideeffect "{asm}", "{operands}"({parameters}) nounwind ' + " ".join(
        more
    )
    body = f"  {call}\n  ret void" if result == "void" else f"  %r = {call}\n  ret {result} %r"
    return _function(name, result, parameters, body)


# Special registers: (name, type, PTX register, may be merged).  %smid and %warpid can change while
# a thread runs (PTX ISA 10.5, 10.8), so each read stays where it is.
_SPECIAL: tuple[tuple[str, str, str, bool], ...] = (
    *((f"{field}_{axis}", "i32", f"%{register}.{axis}", True)
      for field, register in (("tid", "tid"), ("ntid", "ntid"), ("ctaid", "ctaid"),
                              ("nctaid", "nctaid"))
      for axis in "xyz"),
    ("lane", "i32", "%laneid", True),
    ("lanes_below", "i32", "%lanemask_lt", True),
    ("own_lane", "i32", "%lanemask_eq", True),
    ("site_mask", "i32", SITE_MASK, True),
    ("sm", "i32", "%smid", False),
    ("warp", "i32", "%warpid", False),
    ("globaltimer", "i64", "%globaltimer", False),
    ("clock", "i64", "%clock64", False),
    ("ticks", "i32", "%clock", False),
)  # fmt: skip

_PTX_FUNCTIONS = (
    *(_special(name, kind, register, pure=pure) for name, kind, register, pure in _SPECIAL),
    # Section 9.7.14: which lanes run this very instruction.
    _asm("active", "i32", "", "activemask.b32 $0;", "=r", "convergent"),
    # Section 9.7.9.6: lanes of the mask with the same value.
    _asm("match", "i32", "i64 %v, i32 %m",
         "match.any.sync.b64 $0, $1, $2;", "=r,l,r", "convergent"),
    _asm("shuffle32", "i32", "i32 %v, i32 %s, i32 %m",
         "shfl.sync.idx.b32 $0, $1, $2, 31, $3;", "=r,r,r,r", "convergent"),
    # Section 9.7.13.2: also orders memory among the lanes of the mask.
    _asm("sync", "void", "i32 %m", "bar.warp.sync $0;", "r,~{memory}", "convergent"),
    _asm("fence_sys", "void", "", "fence.sc.sys;", "~{memory}"),
    _asm("fence_gpu", "void", "", "fence.sc.gpu;", "~{memory}"),
    _asm("load_gpu", "i64", "i64 %a", "ld.relaxed.gpu.global.b64 $0, [$1];", "=l,l,~{memory}"),
    # Two words at a multiple of 16, neither ordered before the other.
    _asm("load_pair_gpu", "{ i64, i64 }", "i64 %a",
         "ld.relaxed.gpu.global.v2.b64 {$0, $1}, [$2];", "=l,=l,l,~{memory}"),
    _asm("add_gpu", "void", "i64 %a, i64 %v",
         "red.relaxed.gpu.global.add.u64 [$0], $1;", "l,l,~{memory}"),
    _asm("cas_gpu", "i64", "i64 %a, i64 %c, i64 %v",
         "atom.relaxed.gpu.global.cas.b64 $0, [$1], $2, $3;", "=l,l,l,l,~{memory}"),
    _asm("acquire_gpu", "i64", "i64 %a", "ld.acquire.gpu.global.b64 $0, [$1];", "=l,l,~{memory}"),
    # Two words at a multiple of 16, each acquired; neither is ordered before the other.
    _asm("acquire_pair_gpu", "{ i64, i64 }", "i64 %a",
         "ld.acquire.gpu.global.v2.b64 {$0, $1}, [$2];", "=l,=l,l,~{memory}"),
    _asm("fetch_add_gpu", "i64", "i64 %a, i64 %v",
         "atom.acq_rel.gpu.global.add.u64 $0, [$1], $2;", "=l,l,l,~{memory}"),
    _asm("swap_gpu", "i64", "i64 %a, i64 %c, i64 %v",
         "atom.acq_rel.gpu.global.cas.b64 $0, [$1], $2, $3;", "=l,l,l,l,~{memory}"),
    _asm("claim_gpu", "i64", "i64 %a, i64 %c, i64 %v",
         "atom.acquire.gpu.global.cas.b64 $0, [$1], $2, $3;", "=l,l,l,l,~{memory}"),
    _asm("take_gpu", "i64", "i64 %a, i64 %v",
         "atom.relaxed.gpu.global.add.u64 $0, [$1], $2;", "=l,l,l,~{memory}"),
    _asm("exchange_gpu", "i64", "i64 %a, i64 %v",
         "atom.relaxed.gpu.global.exch.b64 $0, [$1], $2;", "=l,l,l,~{memory}"),
    _asm("pin_gpu", "i64", "i64 %a",
         "atom.acquire.gpu.global.add.u64 $0, [$1], 1;", "=l,l,~{memory}"),
    _asm("max_gpu", "void", "i64 %a, i64 %v",
         "red.relaxed.gpu.global.max.u64 [$0], $1;", "l,l,~{memory}"),
    _asm("or_gpu", "void", "i64 %a, i64 %v",
         "red.relaxed.gpu.global.or.b64 [$0], $1;", "l,l,~{memory}"),
    _asm("release_gpu", "void", "i64 %a, i64 %v",
         "st.release.gpu.global.b64 [$0], $1;", "l,l,~{memory}"),
    _asm("add_release_gpu", "void", "i64 %a, i64 %v",
         "red.release.gpu.global.add.u64 [$0], $1;", "l,l,~{memory}"),
    _asm("release_sys", "void", "i64 %a, i64 %v",
         "st.release.sys.global.b64 [$0], $1;", "l,l,~{memory}"),
    # Two words at a multiple of 16, each released; neither is ordered before the other.
    _asm("release_pair_sys", "void", "i64 %a, i64 %v, i64 %w",
         "st.release.sys.global.v2.b64 [$0], {$1, $2};", "l,l,l,~{memory}"),
    _asm("store_pair_gpu", "void", "i64 %a, i64 %v, i64 %w",
         "st.relaxed.gpu.global.v2.b64 [$0], {$1, $2};", "l,l,l,~{memory}"),
    _asm("release_flag_gpu", "void", "i64 %a, i16 %v",
         "st.release.gpu.global.b16 [$0], $1;", "l,h,~{memory}"),
    # A slot for this SM: %smid can be sparse and beyond the slots of the layout; the last slot
    # takes what is.  A remainder would cost 18 instructions, which ptxas runs every time.
    _function("slot_of", "i32", "i32 %sm, i32 %slots",
              "  %last = sub i32 %slots, 1\n  %in = icmp ult i32 %sm, %last\n"
              "  %r = select i1 %in, i32 %sm, i32 %last\n  ret i32 %r"),
    # Which of an SM's copies a warp uses does not matter.  So it is read as if it never changed; it
    # is the same in all lanes, so that ptxas adds up what they add.  By the type splice.sass_lane
    # tells it from the warp's number that a program reads.
    _special("pick", "b32", "%warpid", pure=True),
    _function("differing", "i32", "", "  ret i32 0"),
    _function("crowded", "i1", "i1 %together",
              "  %r = xor i1 %together, true\n  ret i1 %r"),
    # LLVM would add a constant offset to the launch's arena, where it costs two instructions; what
    # is added last is a part of the instructions that use the address.
    _function("at_offset", "i64", "i64 %a, i64 %o",
              f'  %r = call i64 asm "add.s64 $0, $1, $2;", "=l,l,l"(i64 %a, i64 %o) {PURE}\n'
              "  ret i64 %r"),
)  # fmt: skip
# Where one lane runs alone: the clock, which takes a quarter of the time to read, and a zero that
# differs by lane for all that ptxas knows.  Of an address that is the same in all lanes it adds up
# over lanes that are not there: a dozen instructions for nothing.
_ALONE_FUNCTIONS = (
    _special("pick", "i32", "%clock", pure=True),
    _special("differing", "i32", CHOSEN, pure=True),
    _function("crowded", "i1", "i1 %together", "  ret i1 true"),
)

_ONE_THREAD: dict[str, int] = {
    **{f"{field}_{axis}": 0 for field in ("tid", "ctaid") for axis in "xyz"},
    **{f"{field}_{axis}": 1 for field in ("ntid", "nctaid") for axis in "xyz"},
    "lane": 0, "lanes_below": 0, "own_lane": 1, "sm": 0, "warp": 0, "pick": 0, "ticks": 0,
    "active": 1, "site_mask": 1, "differing": 0,
}  # fmt: skip

_CLOCK = """  %t = alloca { i64, i64 }, align 8
  %e = call i32 @clock_gettime(i32 1, ptr %t)
  %s = load i64, ptr %t, align 8
  %p = getelementptr i8, ptr %t, i64 8
  %n = load i64, ptr %p, align 8
  %m = mul i64 %s, 1000000000
  %r = add i64 %m, %n
  ret i64 %r"""

_HOST_PAIR = """  %p = inttoptr i64 %a to ptr
  %x = load atomic i64, ptr %p {order}, align 8
  %q = getelementptr i8, ptr %p, i64 8
  %y = load atomic i64, ptr %q {order}, align 8
  %s = insertvalue {{ i64, i64 }} poison, i64 %x, 0
  %r = insertvalue {{ i64, i64 }} %s, i64 %y, 1
  ret {{ i64, i64 }} %r"""

_HOST_FUNCTIONS = (
    *(_function(name, "i32", "", f"  ret i32 {value}") for name, value in _ONE_THREAD.items()),
    _function("globaltimer", "i64", "", _CLOCK),  # CLOCK_MONOTONIC
    _function("clock", "i64", "", "  %r = call i64 @llvm.readcyclecounter()\n  ret i64 %r"),
    _function("match", "i32", "i64 %v, i32 %m", "  ret i32 %m"),
    _function("shuffle32", "i32", "i32 %v, i32 %s, i32 %m", "  ret i32 %v"),
    _function("sync", "void", "i32 %m", "  ret void"),
    _function("fence_sys", "void", "", "  fence seq_cst\n  ret void"),
    _function("fence_gpu", "void", "", "  fence seq_cst\n  ret void"),
    _function("load_gpu", "i64", "i64 %a",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = load atomic i64, ptr %p monotonic, align 8\n  ret i64 %r"),
    _function("add_gpu", "void", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = atomicrmw add ptr %p, i64 %v seq_cst, align 8\n  ret void"),
    _function("cas_gpu", "i64", "i64 %a, i64 %c, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %q = cmpxchg ptr %p, i64 %c, i64 %v seq_cst seq_cst, align 8\n"
              "  %r = extractvalue { i64, i1 } %q, 0\n  ret i64 %r"),
    _function("load_pair_gpu", "{ i64, i64 }", "i64 %a", _HOST_PAIR.format(order="monotonic")),
    _function("acquire_gpu", "i64", "i64 %a",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = load atomic i64, ptr %p acquire, align 8\n  ret i64 %r"),
    _function("acquire_pair_gpu", "{ i64, i64 }", "i64 %a", _HOST_PAIR.format(order="acquire")),
    _function("fetch_add_gpu", "i64", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = atomicrmw add ptr %p, i64 %v seq_cst, align 8\n  ret i64 %r"),
    _function("swap_gpu", "i64", "i64 %a, i64 %c, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %q = cmpxchg ptr %p, i64 %c, i64 %v seq_cst seq_cst, align 8\n"
              "  %r = extractvalue { i64, i1 } %q, 0\n  ret i64 %r"),
    _function("add_release_gpu", "void", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = atomicrmw add ptr %p, i64 %v seq_cst, align 8\n  ret void"),
    _function("claim_gpu", "i64", "i64 %a, i64 %c, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %q = cmpxchg ptr %p, i64 %c, i64 %v seq_cst seq_cst, align 8\n"
              "  %r = extractvalue { i64, i1 } %q, 0\n  ret i64 %r"),
    _function("take_gpu", "i64", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = atomicrmw add ptr %p, i64 %v seq_cst, align 8\n  ret i64 %r"),
    _function("exchange_gpu", "i64", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = atomicrmw xchg ptr %p, i64 %v seq_cst, align 8\n  ret i64 %r"),
    _function("pin_gpu", "i64", "i64 %a",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = atomicrmw add ptr %p, i64 1 seq_cst, align 8\n  ret i64 %r"),
    _function("max_gpu", "void", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = atomicrmw umax ptr %p, i64 %v seq_cst, align 8\n  ret void"),
    _function("or_gpu", "void", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  %r = atomicrmw or ptr %p, i64 %v seq_cst, align 8\n  ret void"),
    _function("release_gpu", "void", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  store atomic i64 %v, ptr %p release, align 8\n  ret void"),
    _function("release_sys", "void", "i64 %a, i64 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  store atomic i64 %v, ptr %p release, align 8\n  ret void"),
    _function("release_pair_sys", "void", "i64 %a, i64 %v, i64 %w",
              "  %p = inttoptr i64 %a to ptr\n  %q = getelementptr i8, ptr %p, i64 8\n"
              "  store atomic i64 %v, ptr %p release, align 8\n"
              "  store atomic i64 %w, ptr %q release, align 8\n  ret void"),
    _function("store_pair_gpu", "void", "i64 %a, i64 %v, i64 %w",
              "  %p = inttoptr i64 %a to ptr\n  %q = getelementptr i8, ptr %p, i64 8\n"
              "  store i64 %v, ptr %p, align 8\n  store i64 %w, ptr %q, align 8\n  ret void"),
    _function("release_flag_gpu", "void", "i64 %a, i16 %v",
              "  %p = inttoptr i64 %a to ptr\n"
              "  store atomic i16 %v, ptr %p release, align 2\n  ret void"),
    _function("slot_of", "i32", "i32 %sm, i32 %slots", "  ret i32 0"),
    _function("at_offset", "i64", "i64 %a, i64 %o", "  %r = add i64 %a, %o\n  ret i64 %r"),
    _function("crowded", "i1", "i1 %together", "  ret i1 false"),
)  # fmt: skip


def _by_name(functions: tuple[str, ...]) -> dict[str, str]:
    return {text.split("@", 1)[1].split("(", 1)[0]: text for text in functions}


class Together(enum.Enum):
    """How many lanes of a warp run a program together."""

    WARP = "any"
    ONE = "one"  # each for itself, or one lane alone: what lanes do in common falls away


# A lane alone in its warp is what the host is.
_COLLECTIVE = ("active", "match", "shuffle32", "sync", "lanes_below", "own_lane")

PRIMITIVES: dict[Machine, dict[str, str]] = {
    Machine.NVPTX: _by_name(_PTX_FUNCTIONS),
    Machine.X86_64: _by_name(_HOST_FUNCTIONS),
}


def primitives(machine: Machine, together: Together) -> dict[str, str]:
    """The functions for ``machine`` by name."""
    table = PRIMITIVES[machine]
    if together is Together.WARP:
        return table
    host = PRIMITIVES[Machine.X86_64]
    alone = {f"{PREFIX}{name}": host[f"{PREFIX}{name}"] for name in _COLLECTIVE}
    return table | alone | (_by_name(_ALONE_FUNCTIONS) if machine is Machine.NVPTX else {})


DECLARATIONS: dict[Machine, str] = {
    Machine.NVPTX: "",
    Machine.X86_64: (
        "declare i32 @clock_gettime(i32, ptr)\ndeclare i64 @llvm.readcyclecounter()\n"
    ),
}
