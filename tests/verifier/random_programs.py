"""Random programs that the verifier accepts: arithmetic, branches, loops, stack, memory, calls."""

import random
from dataclasses import dataclass, field

MEMORY = 64  # bytes behind r1
ALU = ["add", "sub", "mul", "div", "mod", "sdiv", "smod", "or", "and", "xor", "lsh", "rsh", "arsh"]
JUMPS = ["jeq", "jne", "jgt", "jge", "jlt", "jle", "jset", "jsgt", "jsge", "jslt", "jsle"]
UNARY = ["neg", "neg32", "le16", "le32", "le64", "be16", "be32", "be64"]
UNARY += ["swap16", "swap32", "swap64"]
EXTENSIONS = ["movsx832", "movsx1632", "movsx864", "movsx1664", "movsx3264"]
ATOMICS = ["add", "or", "and", "xor", "fetch add", "fetch or", "fetch and", "fetch xor", "xchg"]
ATOMICS += ["cmpxchg"]
NUMBERS = [0, 1, 2, 3, 7, 8, 15, 31, 63, 255, 256, 0x7FFFFFFF, -1, -2, -8, -128, -0x80000000]


@dataclass
class Writer:
    """Writes one random program; r1 is the memory, r9 counts loops, r8 is scratch."""

    randomness: random.Random
    lines: list = field(default_factory=list)
    labels: int = 0

    def emit(self, line):
        self.lines.append(line)

    def register(self):
        return f"%r{self.randomness.choice([0, 3, 4, 5, 6, 7])}"

    def operand(self):
        if self.randomness.random() < 0.5:
            return self.register()
        return str(self.randomness.choice(NUMBERS))

    def label(self):
        self.labels += 1
        return f"l{self.labels}"

    def alu(self):
        tail = self.randomness.choice(["", "32"])
        op = self.randomness.choice([*ALU, "mov"])
        self.emit(f"{op}{tail} {self.register()}, {self.operand()}")

    def unary(self):
        self.emit(f"{self.randomness.choice(UNARY)} {self.register()}")

    def extend(self):
        op = self.randomness.choice(EXTENSIONS)
        self.emit(f"{op} {self.register()}, {self.register()}")

    def branch(self, depth):
        label = self.label()
        tail = self.randomness.choice(["", "32"])
        jump = self.randomness.choice(JUMPS) + tail
        self.emit(f"{jump} {self.register()}, {self.operand()}, {label}")
        self.block(depth + 1, 3)
        self.emit(f"{label}:")

    def loop(self, depth):
        label = self.label()
        turns, step = self.randomness.randrange(4), self.randomness.choice([1, 2, 3])
        form = self.randomness.randrange(4)
        self.emit("mov %r9, 0" if form in (1, 2) else f"mov %r9, {turns}")
        if form == 3:
            self.emit("stxdw [%r10-48], %r9")
        self.emit(f"{label}:")
        if form == 2:
            self.emit(f"jge %r9, {turns}, {label}out")
        self.block(depth + 1, 3, loops=False)
        match form:
            case 0:
                self.emit(f"add %r9, -1\njsgt %r9, 0, {label}")
            case 1:
                self.emit(f"add32 %r9, {step}\njlt32 %r9, {turns * step}, {label}")
            case 2:
                self.emit(f"add %r9, {step}\nja {label}\n{label}out:")
            case 3:
                self.emit("ldxdw %r8, [%r10-48]\nadd %r8, -1\nstxdw [%r10-48], %r8")
                self.emit(f"jsgt %r8, 0, {label}")

    def slot(self):
        size, name = self.randomness.choice([(1, "b"), (2, "h"), (4, "w"), (8, "dw")])
        return -self.randomness.randrange(size, 33, size), name

    def stack(self):
        offset, size = self.slot()
        match self.randomness.randrange(3):
            case 0:
                self.emit(f"stx{size} [%r10{offset}], {self.register()}")
            case 1:
                self.emit(f"st{size} [%r10{offset}], {self.randomness.choice(NUMBERS)}")
            case 2:
                self.emit(f"ldx{size} {self.register()}, [%r10{offset}]")

    def somewhere(self):
        """An access at a variable offset of the stack or the memory."""
        base, adjust = self.randomness.choice([("%r10", -32), ("%r1", 0)])
        mask, size = self.randomness.choice([(31, "b"), (28, "w"), (24, "dw")])
        index = self.register()
        self.emit(f"mov %r8, {index}\nand %r8, {mask}\nadd %r8, {base}")
        if self.randomness.random() < 0.5:
            self.emit(f"ldx{size} {self.register()}, [%r8{adjust:+d}]")
        else:
            self.emit(f"stx{size} [%r8{adjust:+d}], {index}")

    def atomic(self):
        base = self.randomness.choice(["%r10-32", "%r10-8", "%r1+8", "%r1+24"])
        op = self.randomness.choice(ATOMICS)
        tail = self.randomness.choice(["", "32"])
        self.emit(f"lock {op}{tail} [{base}], {self.register()}")

    def load(self):
        size, name = self.randomness.choice([(1, "b"), (2, "h"), (4, "w"), (8, "dw")])
        offset = self.randomness.randrange(0, MEMORY, size)
        sign = self.randomness.choice(["", "s"]) if size < 8 else ""
        self.emit(f"ldx{sign}{name} {self.register()}, [%r1+{offset}]")

    def compared(self, depth):
        """An index checked by a comparison, the way C code does it."""
        label = self.label()
        index = self.register()
        jump, limit = self.randomness.choice([("jgt", 63), ("jge", 64), ("jgt32", 63)])
        self.emit(f"{jump} {index}, {limit}, {label}")
        if jump.endswith("32"):
            self.emit(f"mov32 {index}, {index}")
        self.emit(f"mov %r8, %r1\nadd %r8, {index}\nldxb {self.register()}, [%r8]\n{label}:")

    def call(self):
        self.emit(
            "stxdw [%r10-40], %r1\nmov %r2, %r10\nadd %r2, -32\ncall local sub\n"
            "ldxdw %r1, [%r10-40]"
        )
        for register in (3, 4, 5):
            self.emit(f"ldxw %r{register}, [%r1+{4 * register}]")

    def block(self, depth, most, *, loops=True):
        for _ in range(self.randomness.randrange(1, most + 1)):
            simple = [self.alu, self.alu, self.unary, self.extend, self.stack, self.load]
            simple += [self.somewhere, self.atomic, lambda: self.compared(depth)]
            nested = []
            if depth < 3:
                nested.append(lambda: self.branch(depth))
                if loops and depth < 2:
                    nested += [lambda: self.loop(depth), self.call]
            self.randomness.choice(simple + nested * 2)()

    def program(self):
        for offset in range(8, 33, 8):
            self.emit(f"stdw [%r10-{offset}], {self.randomness.choice(NUMBERS)}")
        for register in (0, 3, 4, 5, 6, 7):
            self.emit(f"ldxdw %r{register}, [%r1+{8 * (register % 8)}]")
        self.emit("mov %r9, 0")
        self.block(0, 8)
        self.emit("exit")
        self.emit("sub:\nldxdw %r3, [%r2+8]\nldxdw %r0, [%r1+16]\njgt %r3, %r0, out")
        self.emit("stxdw [%r2+8], %r0\nstxdw [%r10-8], %r3\nldxw %r0, [%r10-8]\nout:\nexit")
        text = "\n".join(self.lines)
        return text if "call local" in text else text.rsplit("\nsub:", 1)[0]


class CallbackWriter(Writer):
    """Writes a program whose work is done by the callback of a bpf_loop, on its caller's stack."""

    def simple_block(self, depth):
        for _ in range(self.randomness.randrange(1, 6)):
            choices = [self.alu, self.alu, self.unary, self.extend, self.stack]
            if depth < 3:
                choices.append(lambda: self.simple_branch(depth))
            self.randomness.choice(choices)()

    def simple_branch(self, depth):
        label = self.label()
        tail = self.randomness.choice(["", "32"])
        jump = self.randomness.choice(JUMPS) + tail
        self.emit(f"{jump} {self.register()}, {self.operand()}, {label}")
        self.simple_block(depth + 1)
        self.emit(f"{label}:")

    def program(self):
        self.emit("mov %r7, %r1")
        for offset in range(8, 33, 8):
            self.emit(f"ldxdw %r0, [%r7+{offset}]\nstxdw [%r10-{offset}], %r0")
        self.emit(f"mov %r1, {self.randomness.randrange(6)}")
        self.emit("lddw %r2, code body\nmov %r3, %r10\nadd %r3, -32\nmov %r4, 0\ncall 181")
        for offset in range(8, 33, 8):
            self.emit(f"ldxdw %r2, [%r10-{offset}]\nxor %r0, %r2")
        self.emit("exit\nbody:\nmov %r3, %r1\nmov %r8, %r2")
        for register, offset in zip((0, 4, 5, 6), range(0, 25, 8), strict=True):
            self.emit(f"ldxdw %r{register}, [%r8+{offset}]")
        self.emit("mov %r7, 3")
        for offset in range(8, 33, 8):
            self.emit(f"stdw [%r10-{offset}], {self.randomness.choice(NUMBERS)}")
        self.simple_block(0)
        for _ in range(self.randomness.randrange(1, 4)):
            self.emit(f"stxdw [%r8+{self.randomness.randrange(0, 25, 8)}], {self.register()}")
        self.emit(f"mov %r0, {self.register()}\nand %r0, {self.randomness.choice([0, 1, 1])}\nexit")
        return "\n".join(self.lines)
