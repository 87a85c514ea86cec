"""bpf_printk: formats as in Linux, records, the verifier's rules, device code by interpreter."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import run
from egpu.bpf.interp_state import MapState
from egpu.bpf.maptypes import MapType
from egpu.bpf.own_maps import PRINT_RING, own_map, with_own_maps
from egpu.bpf.print_format import parse_format
from egpu.bpf.prints import (
    HEADER,
    PrintCall,
    decode_record,
)
from egpu.bpf.program import AttachKind, AttachPoint, MapSpec
from egpu.codegen import HostArenas, run_host
from egpu.errors import InputError, UnsupportedError, VerifierError
from egpu.maps.ringbuf import RingReader
from egpu.verifier import verify

M64 = 2**64 - 1
ENTRY = (AttachPoint(AttachKind.ENTRY, "*"),)

RENDERED = [
    (b"plain\n", [], "plain"),
    (b"%% %d%%", [-5 & M64], "% -5%"),
    (b"%d", [2**32 + 7], "7"),  # an int has 32 bits
    (b"%u %x %X", [M64, 255, 255], "4294967295 ff FF"),
    (b"%ld %lu %lx", [M64, M64, 2**40], "-1 18446744073709551615 10000000000"),
    (b"%lld %llu %llx", [1 << 63, 1 << 63, 1 << 63], f"{-(2**63)} {2**63} 8000000000000000"),
    (b"[%5d|%-5d|%05d|%+d|% d|%#x]", [3, 3, 3, 3, 3, 3], "[    3|3    |00003|+3| 3|0x3]"),
    (b"%c%c", [65, 0x1F600], "A\\x00"),
    (b"%p %px %pK", [1, M64, 2], "0000000000000001 ffffffffffffffff 0000000000000002"),
    (b"%s|%5s|%-5s|", [b"ab\0c", b"d", b"e\0"], "ab|    d|e    |"),
    (b"%10s|%-20s|%05s|", [b"ab", b"c", b"d"], "        ab|c" + " " * 19 + "|    d|"),
    (b"%+u|% u|%+x|% #x|%+d", [3, 3, 3, 3, 3], "3|3|3|0x3|+3"),
    (b"%1000d|", [7], " " * 999 + "7|"),
    (b"%2000000000d|%d", [7, 8], " " * 1022 + "7"),
    (b"%" + b"9" * 5000 + b"d", [7], " " * 1022 + "7"),
    (b"%-99999s|", [b"ab"], "ab" + " " * 1021),
    (b"a%0100000u", [5], "a" + "0" * 1022),
    (
        b"%s",
        [b"\x1b[2J\xff"],
        "\\x1b[2J\\xff",
    ),  # nothing reaches the terminal that moves its cursor
    (b"%pks", [b"x"], "x"),
]


@pytest.mark.parametrize(("form", "values", "line"), RENDERED, ids=lambda each: str(each)[:20])
def test_rendering(form, values, line):
    assert parse_format(form + b"\0").render(values) == line


@pytest.mark.parametrize(
    "form",
    [b"%q", b"%", b"%hd", b"%hhx", b"%f", b"%n", b"%pI4", b"%pi6", b"%lls", b"%.3d", b"\xff%d"],
)
def test_formats_that_linux_does_not_have(form):
    with pytest.raises(InputError, match="format"):
        parse_format(form + b"\0")


def test_a_format_ends():
    with pytest.raises(InputError, match="does not end"):
        parse_format(b"abc")


def test_records_of_other_calls_are_nothing():
    call = PrintCall("%d", (0,))
    record = HEADER.pack(call.site, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10) + (11).to_bytes(8, "little")
    line = decode_record(record, {call.site: call})
    assert (line.text, line.block, line.thread, line.sm) == ("11", (5, 6, 7), (8, 9, 10), 4)
    assert decode_record(record, {}) is None
    assert decode_record(record[:-1], {call.site: call}) is None
    assert decode_record(b"", {call.site: call}) is None


def test_sites_depend_on_nothing_but_the_call():
    assert PrintCall("%d", (0,)).site == 0xA107BC96EDC8CAA4
    assert (
        len({PrintCall("%d", (0,)).site, PrintCall("%d", (8,)).site, PrintCall("%u", (0,)).site})
        == 3
    )


def program(text, form=b"", attach=ENTRY):
    """``text`` with ``form`` and the word "word" in .rodata (map 0), and a map of values (1)."""
    data = (form + b"\0").ljust(64, b"\0") + b"word\0".ljust(16, b"\0")
    maps = (
        MapSpec(".rodata", MapType.ARRAY, 4, len(data), 1, initial=data, read_only=True),
        MapSpec("values", MapType.ARRAY, 4, 16, 1, initial=b"of a map\0"),
    )
    return with_own_maps(program_from_code(assemble(text), maps=maps, attach=attach))


def in_registers(form, values):
    loads = "".join(f"lddw %r{3 + i}, {value}\n" for i, value in enumerate(values))
    return f"lddw %r1, map_index_value 0\nmov %r2, {len(form) + 1}\n{loads}call 6\nexit"


def in_array(form, values):
    stores = "".join(
        f"lddw %r1, {value}\nstxdw [%r10-{8 * (len(values) - i)}], %r1\n"
        for i, value in enumerate(values)
    )
    size = 8 * len(values)
    array = f"mov %r3, %r10\nadd %r3, -{size}" if values else "mov %r3, 0"
    return (
        f"{stores}lddw %r1, map_index_value 0\nmov %r2, {len(form) + 1}\n"
        f"{array}\nmov %r4, {size}\ncall 177\nexit"
    )


def by_interpreter(made):
    states = [MapState(spec) for spec in made.maps]
    result = run(made, context=bytes(4384), maps=states)
    return result, [record.decode() for record in states[own_map(made.maps, PRINT_RING)].records]


def by_host(made):
    verified = verify(made)
    arenas = HostArenas(verified)
    result = run_host(verified, bytearray(), arenas=arenas)
    place = arenas.layout.places[own_map(made.maps, PRINT_RING)]

    reader = _reader(arenas, place, made)
    calls = {call.site: call for call in verified.facts.prints.values()}
    records = [record for batch in reader.batches() for record in batch.records()]
    return result, [decode_record(record, calls).text for record in records]


def _reader(arenas, place, made):
    data = np.frombuffer(arenas.host, np.uint8)
    view = SimpleNamespace(bytes=data, words=data.view("<u8"))
    return RingReader(view, arenas.layout, place, made.maps[-1])


def both(made):
    expected = by_interpreter(made)
    assert by_host(made) == expected
    return expected


NUMBERS = ("%d", "%u", "%x", "%lx", "%lld", "%llu", "%c", "%p", "%5d", "%-8x", "%%", "text")


@pytest.mark.parametrize("seed", range(20))
def test_device_code_sends_what_the_interpreter_prints(seed):
    rng = random.Random(seed)
    pieces = rng.choices(NUMBERS, k=rng.randint(0, 9))
    while sum(piece.startswith("%") and piece != "%%" for piece in pieces) > 3 and seed % 2:
        pieces.pop()
    form = " ".join(pieces).encode()
    count = len(parse_format(form + b"\0").values)
    values = [rng.choice((0, 1, M64, 1 << 31, rng.getrandbits(64))) for _ in range(count)]
    text = (in_registers if seed % 2 else in_array)(form, values)
    result, lines = both(program(text, form))
    assert result == 0
    assert lines == [parse_format(form + b"\0").render(values)]


TEXTS = {
    "rodata": "lddw %r3, map_index_value 0+64",
    "map": "lddw %r3, map_index_value 1",
    "inside": "lddw %r3, map_index_value 0+66",
    "stack": "lddw %r3, 0x6b63617473\nstxdw [%r10-8], %r3\nmov %r3, %r10\nadd %r3, -8",
}
SHOWN = {"rodata": "word", "map": "of a map", "inside": "rd", "stack": "stack"}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("array", [False, True])
def test_texts(kind, array):
    form = b"<%s> %d"
    start = f"{TEXTS[kind]}\nlddw %r1, map_index_value 0\nmov %r2, {len(form) + 1}\n"
    if array:
        start += (
            "stxdw [%r10-32], %r3\nstdw [%r10-24], 7\nmov %r3, %r10\nadd %r3, -32\nmov %r4, 16\n"
        )
        made = program(f"{start}call 177\nexit", form)
    else:
        made = program(f"{start}mov %r4, 7\ncall 6\nexit", form)
    assert both(made) == (0, [f"<{SHOWN[kind]}> 7"])


@pytest.mark.parametrize("kind", TEXTS)
def test_puts(kind):
    made = program(TEXTS[kind].replace("%r3", "%r1") + "\ncall 501\nexit")
    assert both(made) == (0, [SHOWN[kind]])


def test_format_on_the_stack():
    """BPF_NO_GLOBAL_DATA: the format is stored by constants right before the call."""
    made = program(
        """
        lddw %r1, 0x206425203d2078
        stxdw [%r10-8], %r1
        mov %r1, %r10
        add %r1, -8
        mov %r2, 8
        mov %r3, -3
        call 6
        exit
        """
    )
    assert both(made) == (0, ["x = -3 "])


def test_text_that_differs_between_ways():
    form = b"%s"
    made = program(
        f"""
        call 7
        lddw %r3, map_index_value 0+64
        jset %r0, 1, odd
        lddw %r3, map_index_value 0+66
        odd:
        lddw %r1, map_index_value 0
        mov %r2, {len(form) + 1}
        call 6
        exit
        """,
        form,
    )
    seen = {by_host(made)[1][0] for _ in range(40)}
    assert seen == {"word", "rd"}  # the random helper is even and odd in 40 tries


FORMAT = "lddw %r1, map_index_value 0\n"
OTHER = "lddw %r1, map_index_value 1\n"
REFUSED = {
    "a number as text": (in_registers(b"%s", [5]), b"%s", "shown as text .* and is"),
    "too few": (in_array(b"%d %d", [1]), b"%d %d", "shows 2 values, 1 are given"),
    "not there": (f"{FORMAT}mov %r2, 3\ncall 6\nexit", b"%d", "not initialised"),
    "specifier": (in_registers(b"%q", []), b"%q", "unknown specifier at 0"),
    "no end": (f"{FORMAT}mov %r2, 2\ncall 6\nexit", b"ab", "does not end"),
    "unknown format": (f"{OTHER}mov %r2, 4\ncall 6\nexit", b"", "not known before"),
    "unknown size": (
        f"call 7\nmov %r2, %r0\nand %r2, 3\nadd %r2, 1\n{FORMAT}call 6\nexit",
        b"ab",
        "size of a format",
    ),
    "half a value": (
        in_array(b"%d", [1]).replace("mov %r4, 8", "mov %r4, 4"),
        b"%d",
        "multiple of 8",
    ),
    "no stack": ("mov %r1, %r10\nadd %r1, -8\nmov %r2, 3\ncall 6\nexit", b"", "not initialised"),
    "outside": (
        "lddw %r1, map_index_value 0+70\nmov %r2, 30\ncall 6\nexit",
        b"",
        "outside its 80 bytes",
    ),
    "context": (
        f"mov %r3, %r1\n{FORMAT}mov %r2, 3\ncall 6\nexit",
        b"%s",
        "shown as text",
    ),
    "puts of a number": ("mov %r1, 5\ncall 501\nexit", b"", "shown as text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    text, form, message = REFUSED[name]
    with pytest.raises(VerifierError, match=message):
        verify(program(text, form))


TWO_FORMATS = """
    call 7
    lddw %r1, map_index_value 0
    jset %r0, 1, odd
    lddw %r1, map_index_value 0+64
    odd:
    mov %r2, 5
    mov %r3, 1
    call 6
    exit
    """


def test_one_call_may_have_several_formats_of_numbers():
    """Compilers make one call of two; tests/bpftime runs such a program (printing.bpf.c)."""
    (call,) = verify(program(TWO_FORMATS, b"abcd")).facts.prints.values()
    assert call.each() == (PrintCall("abcd", ()), PrintCall("word", ()))


@pytest.mark.parametrize("form", [b"ab%d", b"ab%s"])
def test_formats_of_one_call_that_take_other_values_are_refused(form):
    text = TWO_FORMATS.replace("mov %r3, 1", "lddw %r3, map_index_value 0+64")
    with pytest.raises(VerifierError, match=r"one call shows|is printed as a number"):
        verify(program(text if form == b"ab%s" else TWO_FORMATS, form))


def test_more_values_than_fit_are_refused():
    form = b"%d" * 13
    text = f"{FORMAT}mov %r2, {len(form) + 1}\nmov %r3, 0\nmov %r4, 0\ncall 177\nexit"
    with pytest.raises(VerifierError, match="13 values, 12 fit"):
        verify(program(text, form))


def test_without_a_ring_nothing_compiles():
    made = program_from_code(assemble(in_registers(b"a", [])), maps=program("exit", b"a").maps)
    with pytest.raises(UnsupportedError, match="without a ring to print to"):
        run_host(verify(made), bytearray())


def test_the_ring_comes_once_and_only_where_it_is_needed():
    made = program(in_registers(b"a", []), b"a")
    assert [spec.name for spec in made.maps] == [".rodata", "values", PRINT_RING]
    assert with_own_maps(made) is made
    assert own_map(program("mov %r0, 0\nexit").maps, PRINT_RING) is None
