"""Hand-written device code: what a compiled probe looks like, without the compiler."""

from egpu.bpf.program import AttachKind, Level
from egpu.codegen.device_code import DeviceCode, Relocation, RelocKind, Target
from egpu.maps.layout import ArenaLayout, MapPlace

LAYOUT = ArenaLayout(
    sm_slots=132,
    places=(
        MapPlace(offset=4096, stride=128, entry_stride=8),
        MapPlace(
            offset=24576,
            stride=128,
            entry_stride=0,
            ring_data=65536,
            ring_size=16384,
            ring_readers=4096,
            ring_stamped=24,
        ),
    ),
    device_size=65536,
    host_size=1 << 22,
    snapshot=1 << 21,
    commands=3 << 20,
)

# One count per thread at a map's offset in the arena, skipped when there is no arena: declares the
# registers and labels that compilers use too, so that scopes are put to the test.
COUNT = """
.reg .pred %p<2>;
.reg .b32 %r<3>;
.reg .b64 %rd<4>;
activemask.b32 %r1;
// begin inline asm
mov.b64 %rd1, __egpu_launch_0;
// end inline asm
setp.eq.s64 %p1, %rd1, 0;
@%p1 bra $L__BB0_2;
mov.b64 %rd2, __egpu_map_0;
add.s64 %rd3, %rd1, %rd2;
red.relaxed.gpu.global.add.u64 [%rd3], 1;
$L__BB0_2:
bar.warp.sync %r1;
"""
COUNT_RELOCATIONS = (Relocation(RelocKind.LAUNCH, 0), Relocation(RelocKind.MAP, 0))


def code(text, *relocations, kind=AttachKind.ENTRY, level=Level.THREAD, isa=(6, 3)):
    return DeviceCode(Target.PTX, "probe", kind, level, text, relocations, (), isa, "digest")


def count(kind=AttachKind.ENTRY):
    return code(COUNT, *COUNT_RELOCATIONS, kind=kind)


def value(kind, index=0, *, at=AttachKind.ENTRY):
    """A probe that loads one symbol and stores it to the device arena."""
    relocation = Relocation(kind, index)
    return code(
        f".reg .b64 %a, %v; mov.b64 %a, __egpu_launch_0; mov.b64 %v, {relocation.symbol}; "
        "st.global.b64 [%a], %v;",
        Relocation(RelocKind.LAUNCH, 0),
        relocation,
        kind=at,
    )


ENTRY, EXIT = AttachKind.ENTRY, AttachKind.EXIT
EVERYTHING = (
    count(ENTRY),
    count(ENTRY),
    count(EXIT),
    value(RelocKind.PARAM_BYTES, 4, at=EXIT),
    value(RelocKind.START_TIME, at=EXIT),
    value(RelocKind.START_CLOCK, at=EXIT),
)
