"""Records into rings in device memory: as into those in host memory, but published by flags."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from codegen_programs import (
    ARCHES,
    OUTPUT,
    RING,
    assemble_ptx,
    entry,
    executable,
    in_kernel,
    leave,
    needs_ptxas,
    probe,
)
from test_codegen_lanes import RESERVED, SIZES, SLOTS, Run
from test_codegen_maps import NESTED, RESERVE, control

from egpu.bpf.program import Level
from egpu.codegen import HostArenas, RelocKind, compile_probe, run_host
from egpu.maps import RingReader
from egpu.maps.layout import READER_STRIDE, RING_PAD_COUNT, RING_READER, round_up

LARGE = replace(RING, max_entries=SLOTS << 16)
# Two sizes, so that the header is written before a record is submitted.
TWO_SIZES = """
lddw %r1, map_index 0
mov %r2, 16
mov %r3, 0
call 131
jeq %r0, 0, next
stdw [%r0], 1
stdw [%r0+8], 2
mov %r1, %r0
mov %r2, 0
call 132
next:
lddw %r1, map_index 0
mov %r2, 24
mov %r3, 0
call 131
jeq %r0, 0, done
stdw [%r0], 3
stdw [%r0+8], 4
stdw [%r0+16], 5
mov %r1, %r0
mov %r2, 0
call 132
done:
mov %r0, 0
exit
"""
# Records of more bytes than OUTPUT has.
LARGER = (
    "".join(f"stdw [%r10-{at}], {at}\n" for at in range(8, 129, 8))
    + """
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -128
mov %r3, {size}
mov %r4, 0
call 130
mov %r0, 0
exit
"""
)
PROGRAMS = {
    "output": OUTPUT.format(size=24),
    "sizes": SIZES,
    "reserve": RESERVED,
    "two-sizes": TWO_SIZES,
}


def on_device(spec):
    return replace(spec, on_device=True)


def drained(device, layout, index=0, sizes=None):
    """A host arena with what is published in the rings of a map, which ``device`` holds; checks
    that flags are set where groups begin and nowhere else, and tell how large they are."""
    place, sizes = layout.places[index], set() if sizes is None else sizes
    found = np.frombuffer(bytes(device), np.uint8)
    host = np.zeros(layout.host_size, np.uint8)
    words = host.view(np.uint64)
    size = place.ring_size
    rings = found[place.ring_device : place.ring_device + layout.sm_slots * size]
    host[place.ring_data : place.ring_data + len(rings)] = rings
    flags = found[place.ring_flags : place.ring_flags + len(rings) // 16].view(np.uint16)
    for slot in range(layout.sm_slots):
        at = 0
        mine = {int(n) * 32: int(flags[slot * size // 32 + n])
                for n in np.flatnonzero(flags[slot * size // 32 :][: size // 32])}  # fmt: skip
        while (flag := mine.pop(at - at % 32, 0)) != 0:
            assert flag >> 8 == at % 32 // 16  # in lap 0
            first = int(words[(place.ring_data + slot * size + at) // 8])
            step = round_up(16 + (first >> 32) * round_up(first & 0xFFFFFFFF, 8), 16)
            filler = first >> 32 == RING_PAD_COUNT
            assert flag & 255 in ({1} if filler else {min(step // 16, 255), 255})
            sizes.add(flag & 255)
            at += size - at if filler else step
        assert not mine
        limit = place.ring_readers + slot * READER_STRIDE + RING_READER["limit"][0]
        words[limit // 8] = at
    return SimpleNamespace(bytes=host, words=words)


def read(device, layout, spec, index=0, sizes=None):
    arena = drained(device, layout, index, sizes)
    reader = RingReader(arena, layout, layout.places[index], spec)
    return list(reader), reader.counts


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("point", [entry(), entry(Level.WARP), leave(), entry(Level.BLOCK)])
def test_records_are_the_same(name, point):
    spec = LARGE
    expected = Run(probe(PROGRAMS[name], spec, points=(point,)), point, threads=70)
    found = Run(probe(PROGRAMS[name], on_device(spec), points=(point,)), point, threads=70)
    data = found.memory.read(found.device, found.layout.device_bytes)
    records, counts = read(data, found.layout, on_device(spec))
    assert sorted(records) == sorted(expected.records(spec))
    assert counts.discarded == expected.reader.counts.discarded
    assert found.control("produced") == expected.control("produced") > 0
    assert found.control("dropped") == expected.control("dropped") == 0
    assert not any(found.memory.read(found.host, found.layout.host_size))


def test_a_full_ring_drops_the_same():
    runs = [Run(probe(OUTPUT.format(size=24), spec), entry(), threads=1000)
            for spec in (RING, on_device(RING))]  # fmt: skip
    expected, found = runs
    data = found.memory.read(found.device, found.layout.device_bytes)
    assert read(data, found.layout, on_device(RING))[0] == expected.records(RING)
    assert found.control("dropped") == expected.control("dropped") > 0


# Groups of whole warps, of 6 lanes and of one; a size that no flag holds; reserved records, whose
# sizes are known, or not.
@pytest.mark.parametrize(
    ("text", "threads", "granules"),
    [
        (OUTPUT.format(size=24), 70, {1 + 48, 1 + 9}),
        (LARGER.format(size=120), 64, {1 + 240}),
        (LARGER.format(size=128), 65, {255, 1 + 8}),
        (RESERVED, 32, {2}),
        (TWO_SIZES, 32, {255}),
    ],
)
def test_flags_tell_how_large_groups_are(text, threads, granules):
    run = Run(probe(text, on_device(LARGE)), entry(), threads=threads)
    data, sizes = run.memory.read(run.device, run.layout.device_bytes), set()
    assert read(data, run.layout, on_device(LARGE), sizes=sizes)[1].received > 0
    assert sizes == granules


@pytest.mark.parametrize("lap", [1, 5, 127, 128, 300, 1 << 40])
@pytest.mark.parametrize("text", [OUTPUT.format(size=24), TWO_SIZES])
def test_flags_tell_the_lap(text, lap):
    spec = on_device(RING)
    verified = executable(text, spec)
    arenas = HostArenas(verified)
    place, size = arenas.layout.places[0], arenas.layout.places[0].ring_size
    words = np.frombuffer(arenas.device, np.uint64)
    words[place.offset // 8 : place.offset // 8 + 2] = lap * size - 32  # head, tail
    for _ in range(3):
        run_host(verified, bytearray(), arenas=arenas)
    head = int(words[place.offset // 8])
    flags = np.frombuffer(arenas.device, np.uint16)[place.ring_flags // 2 :][: size // 32]
    spans = np.flatnonzero(flags)
    assert head > lap * size
    assert {int(span): int(flags[span]) >> 9 for span in spans} == {
        span: (lap - (span == size // 32 - 1)) % 128 for span in map(int, spans)
    }
    assert spans[-1] == size // 32 - 1
    assert len(spans) >= 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_publishes_by_flags_with_device_scope(name):
    code = compile_probe(probe(PROGRAMS[name], on_device(RING)), point=entry())
    other = compile_probe(probe(PROGRAMS[name], RING), point=entry())
    assert "st.release.gpu.global.b16" in code.text
    assert ".sys" not in code.text
    assert "st.release.sys.global" in other.text
    assert ".b16 [" not in other.text
    kinds = [{each.kind for each in probe_.relocations} for probe_ in (code, other)]
    assert (RelocKind.RING_FLAGS in kinds[0], RelocKind.RING_FLAGS in kinds[1]) == (True, False)
    assert code.digest != other.digest


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_it(arch, tmp_path):
    codes = [
        compile_probe(probe(text, on_device(RING)), point=entry()) for text in PROGRAMS.values()
    ]
    assemble_ptx(in_kernel(*codes), tmp_path, arch)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (OUTPUT.format(size=24), 1),
        (TWO_SIZES, 2),
        (RESERVE.format(size=8, value=7, end=132), 1),
        (RESERVE.format(size=8, value=7, end=133), 0),
    ],
)
def test_this_machine_does_the_same(text, kept):
    spec = on_device(RING)
    verified = executable(text, spec)
    arenas = HostArenas(verified)
    for _ in range(5):
        run_host(verified, bytearray(), arenas=arenas)
    records, counts = read(arenas.device, arenas.layout, spec)
    assert counts.received + counts.discarded == control(arenas, "produced") >= 5
    assert len(records) == counts.received == 5 * kept


@pytest.mark.parametrize("end", [132, 133])
def test_records_of_two_maps(end):
    specs = (on_device(RING), on_device(replace(RING, name="others")))
    verified = executable(NESTED.format(other=1, end=end), *specs)
    arenas = HostArenas(verified)
    for _ in range(3):
        run_host(verified, bytearray(), arenas=arenas)
    found = [read(arenas.device, arenas.layout, spec, n)[0] for n, spec in enumerate(specs)]
    kept = 3 if end == 132 else 0
    assert [len(records) for records in found] == [3, kept]
    assert set(found[0]) == {(1).to_bytes(8, "little")}
