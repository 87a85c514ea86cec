"""Programs with callbacks, accepted and refused: for their own tests and for the comparison with
Linux."""

from verifier_programs import RESERVE, VALUE

# r6 to r9 are kept; the callback adds its index to the number on the caller's stack
SUM = """
stdw [%r10-8], 0
mov %r1, {turns}
lddw %r2, code body
mov %r3, %r10
add %r3, -8
mov %r4, 0
call 181
{after}
exit
body:
ldxdw %r3, [%r2]
add %r3, %r1
stxdw [%r2], %r3
mov %r0, 0
{stop}
exit
"""
STOP = "jlt %r1, 6, on\nmov %r0, 1\non:"
ANSWER = "mov %r7, %r0\nldxdw %r0, [%r10-8]\nlsh %r7, 32\nor %r0, %r7"


def loop(turns=10, after="mov %r0, 0", stop=""):
    return SUM.format(turns=turns, after=after, stop=stop)


NESTED = """
stdw [%r10-8], 0
mov %r1, 5
lddw %r2, code outer
mov %r3, %r10
add %r3, -8
mov %r4, 0
call 181
ldxdw %r0, [%r10-8]
exit
outer:
mov %r6, %r1
stxdw [%r10-8], %r2
mov %r1, 3
lddw %r2, code inner
mov %r3, %r10
add %r3, -8
mov %r4, 0
call 181
add %r0, %r6
ldxdw %r2, [%r10-8]
ldxdw %r1, [%r2]
add %r1, %r0
stxdw [%r2], %r1
mov %r0, 0
exit
inner:
ldxdw %r2, [%r2]
ldxdw %r3, [%r2]
add %r3, 100
stxdw [%r2], %r3
mov %r0, 0
exit
"""


REFUSED = {
    "callback returns 2": (loop().replace("mov %r0, 0\n\nexit", "mov %r0, 2\nexit"), "P2"),
    "callback returns anything": (loop().replace("mov %r0, 0\n\nexit", "mov %r0, %r1\nexit"), "P2"),
    "callback returns nothing": (loop().replace("mov %r0, 0\n\nexit", "exit"), "P2"),
    "callback returns a pointer": (
        loop().replace("mov %r0, 0\n\nexit", "mov %r0, %r2\nexit"),
        "P9",
    ),
    "flags": (loop().replace("mov %r4, 0", "mov %r4, 1"), "P2"),
    "no function": (loop().replace("lddw %r2, code body", "lddw %r2, code body\nmov %r2, 5"), "P2"),
    "context that is no stack": (
        "mov %r9, %r1\n" + loop().replace("mov %r3, %r10\nadd %r3, -8", "mov %r3, %r9"),
        "P2",
    ),
    "callback reads r3": (loop().replace("ldxdw %r3, [%r2]", "mov %r5, %r3"), "P2"),
    "callback reads its caller's registers": (
        loop().replace("ldxdw %r3, [%r2]", "mov %r3, %r6"),
        "P2",
    ),
    "callback reads outside its caller's frame": (
        loop().replace("ldxdw %r3, [%r2]", "ldxdw %r3, [%r2+8]"),
        "P2",
    ),
    "callback reads what was never written": (
        loop().replace("ldxdw %r3, [%r2]", "ldxdw %r3, [%r2-8]"),
        "P9",
    ),
    "callback never ends": (
        loop().replace("mov %r0, 0\n\nexit", "mov %r0, 0\nagain:\nja again"),
        "P4",
    ),
    "callback keeps a record": (
        loop().replace(
            "mov %r0, 0\n\nexit",
            RESERVE.format(8) + "jeq %r0, 0, none\nmov %r0, 1\nexit\nnone:\nmov %r0, 0\nexit",
        ),
        "P10",
    ),
    "callback leaves a pointer to its own frame": (
        loop().replace("stxdw [%r2], %r3", "stxdw [%r2], %r10"),
        "P9",
    ),
    "arithmetic on a function": (loop().replace("mov %r4, 0", "add %r2, 8\nmov %r4, 0"), "P2"),
    "read through a function": (loop().replace("mov %r4, 0", "ldxdw %r4, [%r2]"), "P2"),
    "callback makes a pointer of a number": (
        loop(2, "ldxdw %r1, [%r10-8]\nldxdw %r0, [%r1]").replace(
            "stxdw [%r2], %r3", "lddw %r5, map_index_value 4\nstxdw [%r2], %r5"
        ),
        "P4",
    ),
}

# bpf_for_each_map_elem over map 1 (4 values of 16 bytes): r1 map, r2 key, r3 value, r4 context
EACH = """
lddw %r1, map_index {map}
lddw %r2, code body
mov %r3, %r10
add %r3, -8
mov %r4, 0
call 164
mov %r0, 0
exit
body:
{body}
mov %r0, 0
exit
"""


def each(body, map_index=1, before=""):
    text = before + EACH.format(map=map_index, body=body)
    return text.removesuffix("mov %r0, 0\nexit\n") if body.endswith("exit") else text


# Bodies of a callback over map 1, and the rule that each breaks.
BODIES = (
    ("stw [%r2], 1", "P2"),  # keys are not written
    ("mov %r5, 1\nlock add32 [%r2], %r5", "P2"),
    ("ldxdw %r5, [%r2]", "P2"),  # 4 bytes
    ("ldxb %r5, [%r2-1]", "P2"),
    ("ldxdw %r5, [%r3+16]", "P2"),
    ("ldxh %r5, [%r2+1]", "P3"),
    ("ldxdw %r5, [%r4]", "P9"),  # nothing was written there
    ("mov %r0, %r5\nexit", "P2"),
    ("ldxw %r0, [%r2]\nexit", "P2"),  # any number, not 0 or 1
    ("mov %r0, %r2\nexit", "P9"),
    ("stxdw [%r3], %r2", "P9"),
    ("stxdw [%r4], %r2", "P9"),  # the key's memory ends with the call
    ("ldxdw %r5, [%r3]\nadd %r5, 1\nstxdw [%r3], %r5", "P8"),
)  # fmt: skip

# More bodies over map 1 and map 0, and loops, that pass.
PASSING = {
    "nothing": each("mov %r5, 1"),
    "count in each": each("mov %r5, 1\nlock add [%r3], %r5"),
    "count by key": each("ldxw %r5, [%r2]\nlock add [%r3+8], %r5"),
    "bytes of a key": each("ldxb %r5, [%r2+3]\nldxh %r0, [%r2+2]"),
    "per SM": each("ldxdw %r5, [%r3]\nadd %r5, 1\nstxdw [%r3], %r5", 0),
    "read-only values": each("ldxw %r5, [%r3+4]", 3),
    "look up by the key it got": each("stdw [%r10-8], 0\ncall 1\njeq %r0, 0, none\n"
                                      "ldxdw %r5, [%r0+8]\nnone:"),
    "index by a key": each("ldxw %r5, [%r2]\njgt %r5, 15, none\nadd %r3, %r5\n"
                           "ldxb %r5, [%r3]\nnone:"),
    "sum on the stack": each("ldxdw %r5, [%r3]\nldxdw %r1, [%r4]\nadd %r1, %r5\n"
                             "stxdw [%r4], %r1", before="stdw [%r10-8], 0\n"),
    "stop at a value": each("ldxdw %r5, [%r3]\njne %r5, 7, on\nmov %r0, 1\nexit\non:"),
    "loop": loop(),
    "loop that stops": loop(10, ANSWER, STOP),
    "long loop": loop(10_000),
    "no turn": loop(0),
    "nested": NESTED,
    "number of turns": VALUE.format(1) + "stdw [%r10-8], 0\nldxb %r1, [%r6]\n"
                       + loop().split("mov %r1, 10\n")[1],
    "walk in a loop": loop().replace("ldxdw %r3, [%r2]\nadd %r3, %r1\nstxdw [%r2], %r3", (
        "mov %r3, %r2\nlddw %r1, map_index 1\nlddw %r2, code inner\nmov %r4, 0\ncall 164"
    )) + "inner:\nldxw %r5, [%r2]\nldxdw %r1, [%r4]\nadd %r1, %r5\nstxdw [%r4], %r1\n"
         "mov %r0, 0\nexit\n",
    "one callback for two loops": loop().replace("call 181\nmov %r0, 0\nexit", (
        "call 181\nmov %r1, 3\nlddw %r2, code body\nmov %r3, %r10\nadd %r3, -8\n"
        "mov %r4, 0\ncall 181\nmov %r0, 0\nexit"
    )),
    "callback that calls": loop().replace("mov %r0, 0\n\nexit", "call local f\nmov %r0, 0\nexit\n"
                                          "f:\nmov %r0, 3\nexit"),
}  # fmt: skip


def texts():
    """(name, text) of every program here."""
    yield from PASSING.items()
    yield from ((name, text) for name, (text, _) in REFUSED.items())
    yield from ((f"body {number}", each(body)) for number, (body, _) in enumerate(BODIES))
