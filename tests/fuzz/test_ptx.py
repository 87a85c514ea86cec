"""PTX text of any kind: a module or a twin, or one of egpu's own errors."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egpu.bpf.program import AttachKind, Level
from egpu.codegen.device_code import DeviceCode, Relocation, RelocKind, Target
from egpu.errors import InputError, UnsupportedError
from egpu.image.ptx import parse
from egpu.maps.layout import ArenaLayout
from egpu.splice import splice_ptx

KERNELS = Path(__file__).parents[1] / "unit" / "splice" / "kernels"
SEEDS = {path.name: path.read_text() for path in sorted(KERNELS.glob("*.ptx"))}
LAYOUT = ArenaLayout(1, (), 4096, 4096, 0, 0)
PROBES = tuple(
    DeviceCode(
        Target.PTX,
        "probe",
        kind,
        Level.THREAD,
        ".reg .b64 %v; mov.b64 %v, __egpu_launch_0; mov.b64 %v, __egpu_bytes_4;",
        (Relocation(RelocKind.LAUNCH, 0), Relocation(RelocKind.PARAM_BYTES, 4)),
        (),
        (6, 3),
        "digest",
    )
    for kind in (AttachKind.ENTRY, AttachKind.EXIT)
)
WORDS = """
    { } [ ] ( ) ; , : @ ! | + - * / % < > = . .. :: 0 -1 0x 0f3F800000 0d 1e9 089 " // /* */ \0 é
    .entry .func .param .reg .global .const .shared .align .b8 .u64 .version .target .loc .file
    .section .pragma .alias .branchtargets .callprototype .extern .visible .texref ret exit trap bra
    call mov.u64 ld.const.u32 st.global.u32 %r1 %p1 @%p1 $L x x<4> $str __egpu_
"""
PIECES = st.sampled_from(WORDS.split())
BUDGET = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def exercise(text):
    """Parses, splices every kernel, and parses the twins: their text is well-formed PTX again."""
    try:
        module = parse(text)
    except InputError:
        return
    assert module.text == text
    for function in module.functions:
        assert 0 <= function.span.start < function.span.end <= len(text)
        if function.is_entry and function.body is not None:
            try:
                image = splice_ptx(module, function.name, PROBES, LAYOUT)
            except (InputError, UnsupportedError):
                continue
            assert parse(image.text).entry(function.name).parameters[-1].size == 32


@st.composite
def mutated(draw):
    """A real module, cut down to a window, with pieces put in, taken out and repeated."""
    text = SEEDS[draw(st.sampled_from(sorted(SEEDS)))]
    head = text[: text.index(".address_size 64") + 16]
    begin = draw(st.integers(len(head), len(text) - 1))
    text = head + text[len(head) :] if draw(st.booleans()) else head + text[begin : begin + 3000]
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, len(text)))
        end = at + draw(st.integers(0, 12))
        middle = draw(
            st.one_of(PIECES, st.just(""), st.just(text[at:end] * 2), st.text(max_size=4))
        )
        text = text[:at] + middle + text[end:]
    return text


@BUDGET
@given(mutated())
def test_changed_modules(text):
    exercise(text)


@BUDGET
@given(st.lists(PIECES, max_size=60))
def test_random_pieces(pieces):
    exercise(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {" + " ".join(pieces) + "}")


@BUDGET
@given(st.lists(PIECES, max_size=60))
def test_random_pieces_at_module_level(pieces):
    exercise(".version 8.0\n.target sm_80\n.address_size 64\n" + " ".join(pieces))


@BUDGET
@given(st.text(max_size=200))
def test_arbitrary_text(text):
    exercise(text)
    exercise(".version 8.0\n.target sm_80\n.address_size 64\n" + text)
