"""PTX text to a tree of spans (PTX ISA 9.0, chapters 4, 10 and 11).

Covers what nvcc, NVRTC, clang, LLVM and Triton emit up to ISA 9.x, and inline assembly.  Nothing is
printed from the tree, so what it does not look into (debug sections, initial values, prototypes)
is kept as it is.
"""

from __future__ import annotations

import re

from egpu.image.ptx.declarations import (
    LINKAGES,
    SPACES,
    parse_parameters,
    parse_variables,
)
from egpu.image.ptx.lexer import Cursor, is_word
from egpu.image.ptx.operands import Names, parse_call_list, parse_constant, parse_operand
from egpu.image.ptx.syntax import (
    Block,
    Directive,
    Function,
    Instruction,
    Label,
    Module,
    Operand,
    Parameter,
    Span,
    Statement,
    Variable,
)

SCOPE_LIMIT = 128  # nested { } scopes; inline assembly nests a few
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
_LABELLED = frozenset({".branchtargets", ".callprototype", ".calltargets"})
_SPLIT = re.compile(r"\.(?!$)")


def parse(text: str) -> Module:
    """The tree of a PTX module; InputError with line and column when it is not one."""
    return _Parser(text).module()


class _Parser:
    __slots__ = ("cursor", "names", "parts")

    def __init__(self, text: str) -> None:
        self.cursor = Cursor(text)
        self.names = Names()
        self.parts: dict[str, tuple[str, ...]] = {}

    # Module level

    def module(self) -> Module:
        cursor = self.cursor
        version, version_span = self._version()
        target: tuple[str, ...] = ()
        target_span = Span(0, 0)
        address_size = 32  # PTX ISA 9.0, section 11.1.3: the default
        variables: list[Variable] = []
        functions: list[Function] = []
        directives: list[Directive] = []
        while token := cursor.token:
            if token == ".target":
                names, span = self._target()
                if target:
                    raise cursor.error_at(span.start, "a second .target")
                target, target_span = names, span
            elif token == ".address_size":
                cursor.at += 1
                address_size = parse_constant(cursor)
            elif token in (".entry", ".func") or self._linkage_of_function():
                functions.append(self._function())
            elif token in SPACES or token in LINKAGES:
                variables.extend(parse_variables(cursor, self.names))
            elif token == ";":
                cursor.at += 1
            else:
                directives.append(self._directive())
        if not target:
            raise cursor.error("the module has no .target")
        return Module(
            text=cursor.text,
            version=version,
            target=target[0],
            options=target[1:],
            address_size=address_size,
            variables=tuple(variables),
            functions=tuple(functions),
            directives=tuple(directives),
            version_span=version_span,
            target_span=target_span,
        )

    def _version(self) -> tuple[tuple[int, int], Span]:
        cursor = self.cursor
        begin = cursor.start
        if not cursor.accept(".version"):
            raise cursor.unexpected("'.version'")
        match = _VERSION.fullmatch(cursor.token)
        if match is None:
            raise cursor.unexpected("a version such as 9.0")
        cursor.at += 1
        return (int(match[1]), int(match[2])), Span(begin, cursor.end_of_last)

    def _target(self) -> tuple[tuple[str, ...], Span]:
        cursor = self.cursor
        begin = cursor.start
        cursor.at += 1
        names = [cursor.word("a target such as sm_90")]
        while cursor.accept(","):
            names.append(cursor.word("a target option"))
        return tuple(names), Span(begin, cursor.end_of_last)

    def _linkage_of_function(self) -> bool:
        return self.cursor.token in LINKAGES and self.cursor.ahead() in (".entry", ".func")

    # Functions

    def _function(self) -> Function:
        cursor, names = self.cursor, self.names
        begin = cursor.start
        linkage = cursor.take()[1:] if cursor.token in LINKAGES else ""
        is_entry = cursor.take() == ".entry"
        names.enter()
        returns: tuple[Parameter, ...] = ()
        directives: list[Directive] = []
        while cursor.token.startswith("."):
            directives.append(self._function_directive())
        if cursor.token == "(" and not is_entry:
            returns = parse_parameters(cursor, names)
        name = cursor.word("a function name")
        list_begin = cursor.end_of_last
        parameters: tuple[Parameter, ...] = ()
        parameters_span = Span(list_begin, list_begin)
        if cursor.token == "(":
            list_begin = cursor.start
            parameters = parse_parameters(cursor, names)
            parameters_span = Span(list_begin, cursor.end_of_last)
        while cursor.token.startswith("."):
            directives.append(self._function_directive())
        body = None
        if cursor.token == "{":
            body = self._block(0)
        elif not cursor.accept(";"):
            raise cursor.unexpected("a function body or ';'")
        names.leave()
        return Function(
            span=Span(begin, cursor.end_of_last),
            name=name,
            is_entry=is_entry,
            linkage=linkage,
            parameters=parameters,
            parameters_span=parameters_span,
            returns=returns,
            directives=tuple(directives),
            body=body,
        )

    def _function_directive(self) -> Directive:
        cursor = self.cursor
        begin = cursor.start
        name = cursor.take()
        if name == ".pragma":
            self._strings()
            cursor.expect(";")
        elif cursor.token == "(" and name == ".attribute":
            cursor.skip_group()
        elif cursor.token[:1].isdigit():
            parse_constant(cursor)
            while cursor.accept(","):
                parse_constant(cursor)
        return self._made(begin, name)

    # Statements

    def _block(self, depth: int) -> Block:
        cursor = self.cursor
        if depth >= SCOPE_LIMIT:
            raise cursor.error(f"scopes are nested more than {SCOPE_LIMIT} deep")
        begin = cursor.start
        cursor.expect("{")
        self.names.enter()
        statements: list[Statement] = []
        while not cursor.accept("}"):
            self._statement(statements, depth)
        self.names.leave()
        return Block(Span(begin, cursor.end_of_last), tuple(statements))

    def _statement(self, into: list[Statement], depth: int) -> None:
        cursor = self.cursor
        token = cursor.token
        first = token[:1]
        if first == "@" or is_word(token):
            if first != "@" and cursor.ahead() == ":":
                into.append(self._label())
            else:
                into.append(self._instruction())
        elif first == "{":
            into.append(self._block(depth + 1))
        elif token in SPACES or token in LINKAGES:
            into.extend(parse_variables(cursor, self.names))
        elif first == ".":
            into.append(self._directive())
        elif first == ";":
            cursor.at += 1
        else:
            raise cursor.unexpected("a statement")

    def _label(self) -> Label | Directive:
        cursor = self.cursor
        begin = cursor.start
        name = cursor.take()
        if "." in name:
            raise cursor.error_at(begin, f"'{name}' is not a label")
        cursor.at += 1
        if cursor.token not in _LABELLED:
            return Label(Span(begin, cursor.end_of_last), name)
        directive = cursor.take()
        self._to_semicolon()
        return self._made(begin, directive, label=name)

    def _instruction(self) -> Instruction:
        cursor = self.cursor
        begin = cursor.start
        guard: str | None = None
        guard_negated = False
        if cursor.accept("@"):
            guard_negated = cursor.accept("!")
            guard = cursor.word("a predicate")
        opcode = cursor.word("an opcode")
        while cursor.token.startswith("."):  # "ld .global": blanks between the parts
            opcode += cursor.take()
        operands: list[Operand] = []
        if not cursor.accept(";"):
            is_call = opcode == "call" or opcode.startswith("call.")
            while True:
                if is_call and cursor.token == "(":
                    operands.append(parse_call_list(cursor, self.names))
                else:
                    operands.append(parse_operand(cursor, self.names))
                if cursor.accept(";"):
                    break
                cursor.expect(",")
        parts = self.parts.get(opcode)
        if parts is None:
            parts = self.parts[opcode] = tuple(_SPLIT.split(opcode))
        return Instruction(
            Span(begin, cursor.end_of_last), opcode, parts, tuple(operands), guard, guard_negated
        )

    # Directives

    def _directive(self) -> Directive:
        cursor = self.cursor
        begin = cursor.start
        name = cursor.token
        if not name.startswith("."):
            raise cursor.unexpected("a directive")
        cursor.at += 1
        match name:
            case ".loc":
                self._loc()
            case ".file":
                self._file()
            case ".section":
                self._section()
            case ".pragma":
                self._strings()
                cursor.expect(";")
            case ".alias" | ".branchtargets" | ".calltargets" | ".callprototype":
                self._to_semicolon()
            case _:
                cursor.at -= 1
                raise cursor.error(f"unknown directive '{name}'")
        return self._made(begin, name)

    def _made(self, begin: int, name: str, *, label: str = "") -> Directive:
        end = self.cursor.end_of_last
        return Directive(Span(begin, end), name, self.cursor.text[begin:end], label)

    def _loc(self) -> None:
        cursor = self.cursor
        self._integers(3)
        while cursor.token == "," and cursor.ahead() in ("function_name", "inlined_at"):
            cursor.at += 1
            if cursor.take() == "inlined_at":
                self._integers(3)
            else:
                cursor.word("a label")
                if cursor.accept("+"):
                    self._integers(1)
        cursor.accept(";")

    def _file(self) -> None:
        cursor = self.cursor
        self._integers(1)
        self._string()
        if cursor.accept(","):
            self._integers(1)
            cursor.expect(",")
            self._integers(1)
        cursor.accept(";")

    def _section(self) -> None:
        cursor = self.cursor
        if not cursor.token.startswith(".") and not is_word(cursor.token):
            raise cursor.unexpected("a section name")
        while cursor.token.startswith(".") or is_word(cursor.token):
            cursor.at += 1
        if cursor.token != "{":
            raise cursor.unexpected("'{'")
        cursor.skip_group()

    def _integers(self, count: int) -> None:
        for _ in range(count):
            if not self.cursor.token.isdigit():
                raise self.cursor.unexpected("a number")
            self.cursor.at += 1

    def _strings(self) -> None:
        self._string()
        while self.cursor.accept(","):
            self._string()

    def _string(self) -> None:
        if not self.cursor.token.startswith('"'):
            raise self.cursor.unexpected("a string")
        self.cursor.at += 1

    def _to_semicolon(self) -> None:
        while self.cursor.take() != ";":
            pass
