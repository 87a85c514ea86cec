"""Writing LLVM IR as text: one function at a time.

Values are their IR spelling (``%v7`` or a literal).  Nothing here or above it writes ``nsw``,
``nuw`` or ``inbounds``: a wrong promise is undefined behaviour, and a verified program needs none.
"""

from __future__ import annotations

GLOBAL = "ptr addrspace(1)"  # device memory on NVPTX, ordinary memory on x86-64
GENERIC = "ptr"


class Body:
    """The body of one function while it is written."""

    def __init__(self) -> None:
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def fresh(self, hint: str = "v") -> str:
        """A name not used before, without its sigil."""
        self._count += 1
        return f"{hint}.{self._count}"

    def line(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {text}")

    def value(self, text: str) -> str:
        """Append an instruction and give the name of its result."""
        name = f"%{self.fresh()}"
        self.line(f"{name} = {text}")
        return name

    def variable(self, name: str, kind: str, align: int = 8) -> str:
        """A stack variable of the function (made in its first block, so that it can become a
        register)."""
        self._entry.append(f"  %{name} = alloca {kind}, align {align}")
        return f"%{name}"

    def label(self, name: str) -> None:
        """Start block ``name``; the block before must have ended."""
        self._lines.append(f"{name}:")

    def branch(self, target: str) -> None:
        """Go to block ``target``."""
        self.line(f"br label %{target}")

    def branch_if(self, condition: str, then: str, other: str) -> None:
        """Go to block ``then`` if ``condition`` (an i1) holds, else to ``other``."""
        self.line(f"br i1 {condition}, label %{then}, label %{other}")

    def binary(self, op: str, kind: str, left: str, right: str) -> str:
        """``op kind left, right``."""
        return self.value(f"{op} {kind} {left}, {right}")

    def compare(self, predicate: str, kind: str, left: str, right: str) -> str:
        """``icmp predicate kind left, right``."""
        return self.value(f"icmp {predicate} {kind} {left}, {right}")

    def select(self, condition: str, kind: str, then: str, other: str) -> str:
        """``then`` if ``condition`` holds, else ``other``."""
        return self.value(f"select i1 {condition}, {kind} {then}, {kind} {other}")

    def resize(self, value: str, bits: int, new_bits: int, *, signed: bool = False) -> str:
        """``value`` of ``bits`` truncated or extended to ``new_bits``."""
        if bits == new_bits:
            return value
        if bits > new_bits:
            return self.value(f"trunc i{bits} {value} to i{new_bits}")
        return self.value(f"{'sext' if signed else 'zext'} i{bits} {value} to i{new_bits}")

    def add(self, left: str, constant: int) -> str:
        """``left`` plus a constant, 64 bits."""
        return left if constant == 0 else self.binary("add", "i64", left, str(constant))

    def pointer(self, address: str, space: str = GLOBAL) -> str:
        """The 64-bit ``address`` as a pointer in ``space``."""
        return self.value(f"inttoptr i64 {address} to {space}")

    def load(self, kind: str, space: str, pointer: str, align: int) -> str:
        """A plain load."""
        return self.value(f"load {kind}, {space} {pointer}, align {align}")

    def store(self, kind: str, value: str, space: str, pointer: str, align: int) -> None:
        """A plain store."""
        self.line(f"store {kind} {value}, {space} {pointer}, align {align}")

    def call(self, kind: str, function: str, *arguments: str) -> str:
        """Call a function that gives a value; arguments are spelled with their types."""
        return self.value(f"call {kind} @{function}({', '.join(arguments)})")

    def call_void(self, function: str, *arguments: str) -> None:
        """Call a function that gives nothing."""
        self.line(f"call void @{function}({', '.join(arguments)})")

    def text(self, first: str) -> str:
        """The whole body; block ``first`` is where it goes after its variables."""
        return "\n".join(["entry:", *self._entry, f"  br label %{first}", *self._lines])
