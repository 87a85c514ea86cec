"""Programs whose loops only a budget bounds, for the comparison with Linux.

``LINUX_TOO``: with may_goto or bpf_loop, which Linux takes.  ``OURS_ALONE``: loops that count to a
number that is not known.  r1 is a block of memory of ``SIZE`` bytes.
"""

SIZE = 32

LINUX_TOO = {
    "may_goto": "ldxdw %r7, [%r1]\nmov %r0, 0\ntop:\nmay_goto out\njge %r0, %r7, out\n"
    "add %r0, 1\nja top\nout:\nmov %r0, 0\nexit",
    "may_goto waits": "mov %r0, 0\ntop:\nmay_goto out\nldxdw %r7, [%r1]\njeq %r7, 0, top\n"
    "out:\nexit",
    "may_goto at the end": "mov %r0, 0\ntop:\nldxdw %r7, [%r1]\njne %r7, 5, out\nmay_goto +1\n"
    "ja top\nout:\nexit",
    "may_goto twice": "mov %r0, 0\nouter:\nmay_goto out\nmov %r2, 0\ninner:\nmay_goto outer\n"
    "ldxw %r3, [%r1+8]\njge %r2, %r3, outer\nadd %r2, 1\nja inner\nout:\nexit",
    "may_goto sums": "mov %r0, 0\ntop:\nmay_goto out\nldxw %r3, [%r1]\nand %r3, 31\n"
    "mov %r4, %r1\nadd %r4, %r3\nldxb %r0, [%r4]\nja top\nout:\nmov %r0, 0\nexit",
    "may_goto nowhere": "mov %r0, 0\nmay_goto +0\nexit",
    "may_goto ahead": "mov %r0, 0\nmay_goto out\nmov %r0, 1\nout:\nexit",
    "may_goto in a function": "mov %r2, 9\ncall local f\nmov %r0, 0\nexit\nf:\nmov %r0, 0\ntop:\n"
    "may_goto out\nadd %r0, 1\nja top\nout:\nexit",
    "may_goto on the stack": "stdw [%r10-8], 0\ntop:\nmay_goto out\nldxdw %r2, [%r10-8]\n"
    "add %r2, 1\nstxdw [%r10-8], %r2\nja top\nout:\nldxdw %r0, [%r10-8]\nexit",
    "bpf_loop": "ldxw %r1, [%r1]\nlddw %r2, code body\nmov %r3, 0\nmov %r4, 0\ncall 181\n"
    "mov %r0, 0\nexit\nbody:\nmov %r0, 0\nexit",
    "bpf_loop with may_goto": "mov %r6, %r1\nldxw %r1, [%r1]\nlddw %r2, code body\nmov %r3, 0\n"
    "mov %r4, 0\ncall 181\nmov %r0, 0\nexit\nbody:\nmov %r2, 0\ntop:\nmay_goto out\n"
    "add %r2, 1\nja top\nout:\nmov %r0, 0\nexit",
}  # fmt: skip
OURS_ALONE = {
    "to a number": "ldxdw %r7, [%r1]\nmov %r0, 0\ntop:\njge %r0, %r7, out\nadd %r0, 1\nja top\n"
    "out:\nmov %r0, 0\nexit",
    "read again": "mov %r0, 0\ntop:\nldxdw %r7, [%r1]\nadd %r0, 1\njlt %r0, %r7, top\nmov %r0, 0\n"
    "exit",
    "down": "ldxw %r7, [%r1]\njeq %r7, 0, out\ntop:\nsub %r7, 1\njne %r7, 0, top\nout:\n"
    "mov %r0, 0\nexit",
    "in 32 bits": "ldxw %r7, [%r1]\nmov32 %r0, 0\ntop:\nadd32 %r0, 1\njlt32 %r0, %r7, top\n"
    "mov %r0, 0\nexit",
    "in each other": "ldxw %r7, [%r1]\nldxw %r8, [%r1+4]\nmov %r2, 0\nouter:\njge %r2, %r7, out\n"
    "add %r2, 1\nmov %r3, 0\ninner:\njge %r3, %r8, outer\nadd %r3, 1\nja inner\nout:\nmov %r0, 0\n"
    "exit",
}  # fmt: skip
