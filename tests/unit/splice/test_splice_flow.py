"""What spliced code reads, and when, on every way through it: for every probe of this repository,
read off the disassembler's text."""

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sass_flow
from sass_corpus import ARCHS, KERNELS, assemble, needs_tools
from sass_text import SIZE, disassemble

from egpu.agent.twin import DeviceInfo, KernelSeen, Twin
from egpu.bpf.object import read_object
from egpu.bpf.program import AttachKind
from egpu.image import open_image, unpack
from egpu.image.cubin import open_cubin
from egpu.image.cubin_edit import take_apart
from egpu.image.cubin_kernel import open_kernel
from egpu.maps import plan
from egpu.session.additive import additive_maps
from egpu.session.arrivals import verify_all
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.objects import combine
from egpu.session.twins import TwinBuilder
from egpu.splice import sass_carried

pytestmark = needs_tools

ROOT = Path(__file__).resolve().parents[3]
OBJECTS = sorted(
    path
    for folder in ("tests/gpu/probes", "bench/probes", "src/egpu/tools/*")
    for path in ROOT.glob(f"{folder}/*.bpf.o")
    if path.name != "ending.bpf.o"  # ends threads: refused
)
# One with many registers, and, on the architecture on which probes are changed most, one that
# leaves few uniform ones and one that lanes leave at several places.
WHERE = {arch: {"demo": ("_Z6matmulILi16EEvPKfS1_Pfi",)} for arch in ARCHS}
WHERE["90"] = {
    "demo": ("_Z6matmulILi16EEvPKfS1_Pfi", "_ZN4demo7collatzEPKjPjij"),
    "plain": ("early_exits",),
}
STEMS = ("demo", "plain")
READ_PARAMETERS = ("reads", "memory_kinds")  # more than most kernels have


@functools.cache
def member(stem, arch):
    demo = ROOT / "workloads" / "demo" / "kernels.ptx"
    path = demo if stem == "demo" else KERNELS / f"{stem}.ptx"
    (found,) = open_image(assemble(path.read_text(), f"sm_{arch}")).members
    return found


def probes_of(path):
    """The programs of an object, those for one kernel of its own workload for any, each such set by
    itself."""
    whole = read_object(path.read_bytes(), path.stem)
    device = [
        each
        for each in whole.programs
        if all(point.kind in (AttachKind.ENTRY, AttachKind.EXIT) for point in each.attach)
    ]
    patterns = {each.attach[0].pattern for each in device} - {"*", "vecadd"}
    return [
        replace(whole, programs=tuple(for_any(each) for each in device if fits(each, pattern)))
        for pattern in sorted(patterns) or ["*"]
    ]


def fits(program, pattern):
    return program.attach[0].pattern in (pattern, "*", "vecadd")


def for_any(program):
    return replace(program, attach=tuple(replace(each, pattern="*") for each in program.attach))


@dataclass(frozen=True)
class Code:
    """A kernel's code with probes, and how many instructions were the kernel's before."""

    kernel: str
    lines: list
    size: int

    @property
    def appended(self):
        return range(self.size, len(self.lines))

    @property
    def entry(self):
        """Where the entry probes begin, None if there are none."""
        return self._left(0)

    @property
    def exits(self):
        return sorted({self._left(at) for at in range(1, self.size)} - {None})

    def _left(self, at):
        place = self.lines[at].target
        return place if place is not None and place in self.appended else None

    @property
    def kept(self):
        """Registers that the entry probes leave for the exit probes: nothing of the kernel's names
        them."""
        if self.entry is None:
            return frozenset()
        kernel = [line.text for line in self.lines[: self.size]]
        named = {int(number) for text in kernel for number in re.findall(r"\bR(\d+)", text)}
        named |= {number | 1 for number in named}  # pairs
        written = sass_flow.written_at_end(self.lines, self.entry, self.appended)
        return {name for name in written if name[0] == "R" and int(name[1:]) not in named}


def code_of(image, kernel):
    parts = take_apart(open_cubin(image))
    return parts.parts[open_kernel(parts, kernel).text].data


def spliced(objects, arch, where):
    """Each kernel's code with each object's probes."""
    images = []
    for each in objects:
        builder = builder_of(each)
        for stem, names in where.items():
            images += [(name, stem, twin(builder, stem, name, arch)) for name in names]
    sections = [code_of(image, name) for name, _, image in images]
    return [
        Code(name, lines, len(code_of(unpack(member(stem, arch)), name)) // SIZE)
        for (name, stem, _), lines in zip(images, disassemble(sections, arch), strict=True)
    ]


def builder_of(probes):
    whole = combine([probes])
    programs = verify_all(whole.programs)
    additive = additive_maps(programs, whole.maps)
    return TwinBuilder(
        ProbeSet(programs),
        Assembler(find_ptxas()),
        None,
        lambda device: plan(whole.maps, device.sm_count, additive=additive),
        allow_occupancy_loss=False,
        machine_code=True,
    )


def twin(builder, stem, kernel, arch):
    seen = KernelSeen(
        pid=0,
        device=DeviceInfo(0, int(arch) // 10, int(arch) % 10, 132, ""),
        kernel=kernel,
        module=STEMS.index(stem),
        slot=0,
        image=lambda: unpack(member(stem, arch)),
    )
    answer = builder.resolve(seen)
    assert isinstance(answer, Twin), answer
    return answer.image


def objections(code):
    """What the checks say against the appended code."""
    found = []
    if code.entry is not None:
        found += sass_flow.unwritten(code.lines, code.entry, code.appended)
    for start in code.exits:
        found += sass_flow.unwritten(code.lines, start, code.appended, code.kept)
        found += sass_flow.spoilt(code.lines, start, code.appended)
    return [f"{code.kernel} {each}" for each in found]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name.split(".")[0])
def test_what_is_read_was_written(path, arch):
    many = path.name.split(".")[0] in READ_PARAMETERS
    where = {"demo": ("vecadd",)} if many else WHERE[arch]
    codes = spliced(probes_of(path), arch, where)
    assert all(code.entry is not None or code.exits for code in codes)
    assert [each for code in codes for each in objections(code)] == []


def test_a_uniform_value_that_moves_on_one_way_only_is_found(monkeypatch):
    """As it was: what the other way of a branch needs did not count, and the value was given
    another register up to the branch.  It ended in illegal addresses."""
    live = sass_carried.live_registers

    def of_the_way_straight_on(words, arch):
        before, _ = live(words, arch)
        return before, [*before[1:], frozenset()]

    monkeypatch.setattr(sass_carried, "live_registers", of_the_way_straight_on)
    monkeypatch.setattr(sass_carried, "_check_same", lambda *_: None)
    sass_carried.localised.cache_clear()
    path = ROOT / "tests" / "gpu" / "probes" / "per_thread.bpf.o"
    try:
        (code,) = spliced(probes_of(path), "90", {"demo": ("_ZN4demo7collatzEPKjPjij",)})
    finally:
        sass_carried.localised.cache_clear()
    found = objections(code)
    assert found
    assert all("UIADD3" in each for each in found)
