"""Floor 2: is it safe. ``verify`` is the only way from a Program to a VerifiedProgram."""

from egpu.verifier.gate import verify
from egpu.verifier.setting import Limits
from egpu.verifier.verified import (
    Cost,
    Facts,
    Operand,
    Policy,
    Region,
    Rmw,
    RmwOp,
    RmwTerm,
    Uniformity,
    VerifiedProgram,
    VerifierWarning,
)

__all__ = [
    "Cost",
    "Facts",
    "Limits",
    "Operand",
    "Policy",
    "Region",
    "Rmw",
    "RmwOp",
    "RmwTerm",
    "Uniformity",
    "VerifiedProgram",
    "VerifierWarning",
    "verify",
]
