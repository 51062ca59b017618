"""Arithmetic of `{{#expr:...}}`."""

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_MORE_OPERATORS = _OPERATORS | {
    ast.FloorDiv: operator.floordiv,
    ast.Pow: lambda base, power: _power(base, power),
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NAMES: dict[str, Any] = {
    "pi": math.pi,
    "e": math.e,
    "ln": math.log,
    "abs": abs,
    "round": round,
    "int": int,
    "float": float,
    "max": max,
    "min": min,
} | {
    name: getattr(math, name) for name in ("floor", "ceil", "trunc", "exp", "sin", "cos", "tan", "asin", "acos", "atan")
}
_ERRORS = (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, KeyError)
_MAX_LENGTH = 200
_MAX_POWER = 1000
_ALLOWED = re.compile(r"[\d.+\-*/%() ]+")
_ALLOWED_IN_PYTHON = re.compile(r"[\w.+\-*/%()<>=!^&|, ]+", re.ASCII)


def evaluate(expression: str) -> str:
    """The value of sums, products, quotients and remainders of numbers; "" where it is something else.

    Raises:
        ZeroDivisionError: A divisor is zero.
    """
    expression = re.sub(r"\bmod\b", "%", re.sub(r"\bdiv\b", "/", expression.strip())).replace("−", "-")
    if len(expression) > _MAX_LENGTH or not _ALLOWED.fullmatch(expression) or "**" in expression:
        return ""
    try:
        value = _value(ast.parse(expression, mode="eval").body, _OPERATORS, {})
    except ZeroDivisionError:
        raise
    except _ERRORS:
        return ""
    return str(int(value)) if value == int(value) else f"{value:.12g}"


def python_value(expression: str) -> str | None:
    """The value of an expression of numbers in Python, as Python writes it; None where it has none."""
    if len(expression) > _MAX_LENGTH or not _ALLOWED_IN_PYTHON.fullmatch(expression):
        return None
    try:
        value = _value(ast.parse(expression, mode="eval").body, _MORE_OPERATORS, _NAMES)
    except _ERRORS:
        return None
    return str(value)


def _power(base: Any, power: Any) -> Any:
    if abs(power) > _MAX_POWER or abs(base) > 1e9:
        raise ValueError(f"{base} to the {power}")
    return base**power


def _value(node: ast.AST, operators: dict[type[ast.AST], Callable[[Any, Any], Any]], names: dict[str, Any]) -> Any:
    def value(inner: ast.AST) -> Any:
        return _value(inner, operators, names)

    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return value(operand)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not value(operand)
        case ast.BinOp(left=left, op=sign, right=right):
            return operators[type(sign)](value(left), value(right))
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return operators[type(sign)](value(left), value(right))
        case ast.BoolOp(op=ast.And(), values=[first, *_]) if not value(first):
            return value(first)
        case ast.BoolOp(op=ast.Or(), values=[first, *_]) if value(first):
            return value(first)
        case ast.BoolOp(op=sign, values=[_, second, *others]):
            return value(ast.BoolOp(op=sign, values=[second, *others]) if others else second)
        case ast.Name(id=name) if not callable(names[name]):
            return names[name]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if callable(names[name]):
            return names[name](*map(value, arguments))
    raise ValueError(f"{type(node).__name__} is no arithmetic")
