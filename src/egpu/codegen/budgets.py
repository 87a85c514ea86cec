"""The tokens that a run has for loops of an unknown number of turns (``egpu.bpf.budget``).

They are counted down in the state that all functions of a program share, which becomes registers.
A run that lacked one is counted once, in the arena, when it ends.
"""

from __future__ import annotations

from egpu.codegen.arena import ARENA_HEADER, LAUNCH_BLOCK
from egpu.codegen.device_code import Relocation, RelocKind
from egpu.codegen.scope import BUDGET_ENDED, BUDGET_LEFT, BUDGET_SHORT, Scope, symbol_function

ARENA = Relocation(RelocKind.LAUNCH, LAUNCH_BLOCK["device_arena"][0])


def take(scope: Scope, on: str, without: str) -> None:
    """Take a token and go to block ``on``; to ``without`` if there is none.  Ends the block."""
    body, at = scope.body, scope.unit.budget_at
    place = scope.state(at + BUDGET_LEFT)
    left = body.load("i64", "ptr", place, 8)
    paid, missing = body.fresh("paid"), body.fresh("missing")
    body.branch_if(body.compare("eq", "i64", left, "0"), missing, paid)
    body.label(missing)
    body.store("i64", "1", "ptr", scope.state(at + BUDGET_SHORT), 8)
    body.branch(without)
    body.label(paid)
    body.store("i64", body.add(left, -1), "ptr", place, 8)
    body.branch(on)


def end(scope: Scope) -> None:
    """End the program, from whatever function.  Ends the block."""
    body = scope.body
    body.store("i64", "1", "ptr", scope.state(scope.unit.budget_at + BUDGET_ENDED), 8)
    body.line("ret i64 0")


def unwind(scope: Scope) -> None:
    """After a call: return too if the program ended in it."""
    body = scope.body
    ended = body.load("i64", "ptr", scope.state(scope.unit.budget_at + BUDGET_ENDED), 8)
    leave, on = body.fresh("leave"), body.fresh("on")
    body.branch_if(body.compare("ne", "i64", ended, "0"), leave, on)
    body.label(leave)
    body.line("ret i64 0")
    body.label(on)


def beginning(at: int, turns: int) -> list[str]:
    """Instructions that give a run its tokens; the state is zero before."""
    return [
        f"%budget.at = getelementptr i8, ptr %state, i64 {at + BUDGET_LEFT}",
        f"store i64 {turns}, ptr %budget.at, align 8",
    ]


def ending(at: int) -> list[str]:
    """Instructions that count a run that lacked a token, at its end."""
    return [
        f"%short.at = getelementptr i8, ptr %state, i64 {at + BUDGET_SHORT}",
        "%short = load i64, ptr %short.at, align 8",
        "%is.short = icmp ne i64 %short, 0",
        "br i1 %is.short, label %cut.short, label %run.ended",
        "cut.short:",
        f"%arena = call i64 @{symbol_function(ARENA)}()",
        f"%cut.at = add i64 %arena, {ARENA_HEADER['cut_short'][0]}",
        "call void @egpu.add_gpu(i64 %cut.at, i64 1)",
        "br label %run.ended",
        "run.ended:",
    ]
