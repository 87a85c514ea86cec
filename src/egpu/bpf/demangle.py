"""Names of C++ functions from their mangled form (Itanium C++ ABI, section 5.1).

Enough of the grammar for the kernels that compilers emit: nested and templated names, builtin,
pointer, array and function types, literals, substitutions.  Whatever it does not know leaves the
name as it is: a wrong name would attach a probe to the wrong kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from egpu.bpf.cxx_types import BUILTIN, array_of, indirect, listed, literal
from egpu.bpf.mangled import Mangled, UnknownError

_MAX_DEPTH = 64
_MAX_LENGTH = 1 << 15  # of a mangled name, and of its demangled form

_STANDARD = {
    "St": "std", "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string",
    "Si": "std::istream", "So": "std::ostream", "Sd": "std::iostream",
}  # fmt: skip
_OPERATORS = {"cl": "operator()", "pl": "operator+", "mi": "operator-", "ml": "operator*"}
_QUALIFIERS = {"K": " const", "V": " volatile", "r": " restrict"}
_POINTERS = {"P": "*", "R": "&", "O": "&&"}


def demangle(mangled: str) -> str:
    """The readable form without a return type; ``mangled`` itself if it is not understood."""
    if not (mangled.startswith("_Z") and mangled.isascii() and len(mangled) <= _MAX_LENGTH):
        return mangled
    try:
        demangler = _Demangler(mangled)
        name = demangler.encoding()
    except UnknownError:
        return mangled
    # What is left over can only be the suffix of a compiler's clone, ".constprop.0".
    return name if mangled[demangler.at :][:1] in ("", ".") else mangled


@dataclass(slots=True)
class _Demangler(Mangled):
    """Recursive descent over one name."""

    depth: int = 0
    substitutions: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)  # of the innermost named template
    is_template: bool = False
    is_member_const: bool = False

    def encoding(self) -> str:
        """<mangled-name> ::= _Z <name> <bare-function-type>, and the suffixes of clones."""
        name = self._name()
        if self._character() in ("", ".", "E"):
            return name  # a variable, or a function with C linkage
        is_const = self.is_member_const
        if self.is_template:
            self._type()  # the return type, which only templates mangle
        types: list[str] = []
        while self._character() not in ("", ".", "E"):
            types.append(self._type())
        return f"{name}({listed(types)}){' const' if is_const else ''}"

    def _enter(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise UnknownError

    def _checked(self, text: str) -> str:
        if len(text) > _MAX_LENGTH:
            raise UnknownError
        return text

    def _name(self) -> str:
        self._enter()
        if self._peek("N"):
            name = self._nested()
        elif self._peek("Z"):
            name = self._local()
        else:
            name = self._unscoped()
        self.depth -= 1
        return name

    def _local(self) -> str:
        """Z <function> E <name> [<discriminator>], for lambdas and types inside functions."""
        self._expect("Z")
        outer = self.arguments
        self.arguments = []
        function = self.encoding()
        self._expect("E")
        self.arguments = []
        name = self._source_name()
        if self._take("__"):
            self._number()
            self._expect("_")
        elif self._take("_"):
            self._number()
        self.arguments = outer
        self.is_template = self.is_member_const = False
        return self._checked(f"{function}::{name}")

    def _lambda(self) -> str:
        """Ul <types> E [number] _"""
        types: list[str] = []
        while not self._take("E"):
            types.append(self._type())
        return f"'lambda{self._ordinal()}'({listed(types)})"

    def _ordinal(self) -> str:
        """The number of a closure or unnamed type in its function: none, then 0, 1, …"""
        number = "" if self._peek("_") else self._number()
        self._expect("_")
        return number

    def _unscoped(self) -> str:
        if self._peek("S") and not self._peek("St"):
            name = self._substitution()
            if not self._peek("I"):
                raise UnknownError
        else:
            prefix = "std::" if self._take("St") else ""
            name = prefix + self._source_name()
            if self._peek("I"):
                self.substitutions.append(name)
        self.is_template = self._peek("I")
        return self._checked(name + self._template_arguments()) if self.is_template else name

    def _nested(self) -> str:
        """N [qualifiers] <prefix> <unqualified-name> E"""
        self._expect("N")
        while self._character() in _QUALIFIERS and self._character():
            self.is_member_const |= self._character() == "K"
            self.at += 1
        name = ""
        is_template = False
        while not self._take("E"):
            if self._peek("I") and name:
                name += self._template_arguments()
                is_template = True
            elif self._peek("S"):
                if name:
                    raise UnknownError
                name = "std" if self._take("St") else self._substitution()
                is_template = False
                continue
            elif self._peek("T") and not name:
                name = self._template_parameter()
            else:
                part = self._source_name()
                name = f"{name}::{part}" if name else part
                is_template = False
            self._checked(name)
            if not self._peek("E"):
                self.substitutions.append(name)
        self.is_template = is_template
        return name

    def _source_name(self) -> str:
        for code, operator in _OPERATORS.items():
            if self._take(code):
                return operator
        if self._take("Ul"):
            return self._lambda()
        if self._take("Ut"):
            return f"'unnamed{self._ordinal()}'"
        self._take("L")  # internal linkage
        length = int(self._number())
        name = self.text[self.at : self.at + length]
        if len(name) < length or length == 0:
            raise UnknownError
        self.at += length
        if self._take("B"):
            raise UnknownError  # ABI tags
        return "(anonymous namespace)" if name.startswith("_GLOBAL__N") else name

    def _substitution(self) -> str:
        two = self.text[self.at : self.at + 2]
        if two in _STANDARD:
            self.at += 2
            return _STANDARD[two]
        self._expect("S")
        index = self._sequence()
        if index >= len(self.substitutions):
            raise UnknownError
        return self.substitutions[index]

    def _template_parameter(self) -> str:
        self._expect("T")
        index = self._sequence()
        if index >= len(self.arguments):
            raise UnknownError
        return self.arguments[index]

    def _template_arguments(self) -> str:
        self._enter()
        self._expect("I")
        arguments: list[str] = []
        while not self._take("E"):
            arguments.append(self._template_argument())
        self.arguments = arguments
        self.depth -= 1
        return self._checked(f"<{', '.join(filter(None, arguments))}>")

    def _template_argument(self) -> str:
        if self._take("J"):  # a pack, one argument for those who name it by number
            arguments: list[str] = []
            while not self._take("E"):
                arguments.append(self._template_argument())
            return ", ".join(arguments)
        if self._peek("L"):
            return self._literal()
        if self._peek("X"):
            raise UnknownError  # expressions
        return self._type()

    def _literal(self) -> str:
        self._expect("L")
        if self._peek("_Z"):
            raise UnknownError
        kind = self._type()
        end = self.text.find("E", self.at)
        if end < 0:
            raise UnknownError
        digits, self.at = self.text[self.at : end], end + 1
        return literal(kind, digits)

    def _type(self) -> str:
        self._enter()
        text = self._checked(self._any_type())
        self.depth -= 1
        return text

    def _any_type(self) -> str:
        for code in (self.text[self.at : self.at + size] for size in (5, 2, 1)):
            if code in BUILTIN:
                self.at += len(code)
                return BUILTIN[code]
        character = self._character()
        if character in _QUALIFIERS:
            return self._qualified()
        if character in _POINTERS:
            self.at += 1
            return self._add(indirect(self._type(), _POINTERS[character]))
        if self._take("A"):
            return self._array()
        if character == "F":
            return self._function()
        if self._take("Dp"):
            if character != "D" or not self._peek("T"):
                raise UnknownError  # a pattern around a pack, repeated for each element
            return self._add(self._type())
        if character == "T":
            return self._add(self._with_arguments(self._template_parameter(), known=False))
        if character == "S" and not self._peek("St"):
            return self._with_arguments(self._substitution(), known=True)
        if character in ("N", "Z") or character.isdigit() or self._peek("St"):
            return self._add(self._class_name())
        raise UnknownError

    def _class_name(self) -> str:
        """A named type; its template arguments are not those that T_ of the function means."""
        saved = self.arguments, self.is_template, self.is_member_const
        name = self._name()
        self.arguments, self.is_template, self.is_member_const = saved
        return name

    def _with_arguments(self, name: str, *, known: bool) -> str:
        if not self._peek("I"):
            return name
        if not known:
            self.substitutions.append(name)
        saved = self.arguments
        text = name + self._template_arguments()
        self.arguments = saved
        return self._add(text) if known else text

    def _qualified(self) -> str:
        codes = ""
        while self._character() and self._character() in _QUALIFIERS:
            codes += self._character()
            self.at += 1
        inner = self._type()
        mark = "".join(_QUALIFIERS[code] for code in reversed(codes))
        if inner.endswith(("]", ")")) and " (*" not in inner:
            raise UnknownError  # of an array or function itself: it belongs to the element
        return self._add(indirect(inner, mark))

    def _array(self) -> str:
        start = self.at
        while self._character().isdigit():
            self.at += 1
        size = self.text[start : self.at]
        self._expect("_")
        return self._add(array_of(self._type(), size))

    def _function(self) -> str:
        self._expect("F")
        self._take("Y")
        result = self._type()
        types: list[str] = []
        while not self._take("E"):
            types.append(self._type())
        return self._add(f"{result} ({listed(types)})")

    def _add(self, text: str) -> str:
        self.substitutions.append(text)
        return text
