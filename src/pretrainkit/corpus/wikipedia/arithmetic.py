"""Arithmetic of `{{#expr:...}}`."""

import ast
import operator
import re
from collections.abc import Callable

_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_MAX_LENGTH = 200
_ALLOWED = re.compile(r"[\d.+\-*/%() ]+")


def evaluate(expression: str) -> str:
    """The value of sums, products, quotients and remainders of numbers; "" where it is something else."""
    expression = re.sub(r"\bmod\b", "%", expression.strip()).replace("−", "-")
    if len(expression) > _MAX_LENGTH or not _ALLOWED.fullmatch(expression) or "**" in expression:
        return ""
    try:
        value = _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, KeyError):
        return ""
    return str(int(value)) if value == int(value) else f"{value:.12g}"


def _value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=sign, right=right):
            return _OPERATORS[type(sign)](_value(left), _value(right))
    raise ValueError(f"{type(node).__name__} is no arithmetic")
