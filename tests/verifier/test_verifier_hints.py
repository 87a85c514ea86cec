"""Every refusal and every warning says what to change."""

import ast

from verifier_programs import ROOT, VerifierError, check, read_pairs

from egpu.verifier.report import Refusal

SOURCES = sorted((ROOT / "src" / "egpu" / "verifier").glob("*.py"))
_BY_POSITION = 4  # rule or register, text or value, place or need, hint


def refusals():
    """(place, call) of everything that the verifier raises or warns with."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in (Refusal.__name__, "_refuse"):
                yield f"{path.name}:{node.lineno}", node


def hint(call):
    named = [word.value for word in call.keywords if word.arg == "hint"]
    return named[0] if named else (call.args[3] if len(call.args) >= _BY_POSITION else None)


def test_every_refusal_has_a_hint():
    found = dict(refusals())
    assert len(found) > 80
    silent = [
        place
        for place, call in found.items()
        if hint(call) is None or (isinstance(hint(call), ast.Constant) and not hint(call).value)
    ]
    assert silent == []


def test_hints_are_in_the_texts():
    """Whatever the pairs show ends with what to do."""
    pairs = read_pairs("rules.txt") | read_pairs("threads.txt")
    for name, pair in pairs.items():
        if pair.warned:
            hints = [warning.hint for warning in check(pair.refused).warnings]
        else:
            hints = [refused(pair.refused).hint]
        assert hints, name
        assert all(hints), name


def refused(text):
    try:
        check(text)
    except VerifierError as error:
        return error
    raise AssertionError(f"accepted: {text}")
