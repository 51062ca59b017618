"""Arithmetic of `{{#expr:...}}`."""

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    getattr(ast, node): getattr(operator, name)
    for node, name in zip(
        "Add Sub Mult Div Mod FloorDiv BitXor BitAnd BitOr Eq NotEq Lt LtE Gt GtE".split(),
        "add sub mul truediv mod floordiv xor and_ or_ eq ne lt le gt ge".split(),
        strict=True,
    )
} | {ast.Pow: lambda base, power: _power(base, power)}
_FUNCTIONS = {name: getattr(math, name) for name in "floor ceil trunc exp sin cos tan asin acos atan".split()}
_FUNCTIONS |= {"ln": math.log, "abs": abs}
_NAMES: dict[str, Any] = _FUNCTIONS | {"pi": math.pi, "e": math.e}
_NAMES |= {"round": round, "int": int, "float": float, "max": max, "min": min}
_ERRORS = (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, KeyError)
_MAX_LENGTH = 200
_MAX_POWER = 1000
_MAX_PLACES = 15
_LARGEST_WHOLE = 1e15
_ALLOWED_IN_PYTHON = re.compile(r"[\w.+\-*/%()<>=!^&|, ]+", re.ASCII)
_TOKEN = re.compile(r"\s*(\d+\.?\d*|\.\d+|[a-z]+|<>|!=|<=|>=|[-+*/^()=<>])\s*")
_BINARY: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "e": (10, lambda value, power: value * _power(10, power)),
    "^": (8, lambda base, power: _power(base, power)),
    "*": (7, operator.mul),
    "/": (7, operator.truediv),
    "div": (7, operator.truediv),
    "mod": (7, lambda value, by: int(value) - int(by) * int(int(value) / int(by))),
    "fmod": (7, lambda value, by: math.fmod(value, by)),
    "+": (6, operator.add),
    "-": (6, operator.sub),
    "round": (5, lambda value, places: _rounded(value, int(places))),
    "=": (4, operator.eq),
    "!=": (4, operator.ne),
    "<>": (4, operator.ne),
    "<": (4, operator.lt),
    "<=": (4, operator.le),
    ">": (4, operator.gt),
    ">=": (4, operator.ge),
    "and": (3, lambda first, second: bool(first and second)),
    "or": (2, lambda first, second: bool(first or second)),
}
"""MediaWiki's binary operators: (precedence, function)."""
_UNARY = _FUNCTIONS | {"-": operator.neg, "+": operator.pos, "not": operator.not_, "sqrt": math.sqrt}
_UNARY_PRECEDENCE = 9


def evaluate(expression: str) -> str:
    """Return the value of `expression` as MediaWiki computes it, or "" for an empty expression.

    Raises ZeroDivisionError or ValueError if the expression has no value."""
    expression = expression.replace("−", "-").replace("&lt;", "<").replace("&gt;", ">").lower().strip()
    tokens = _TOKEN.findall(expression)
    if len(expression) > _MAX_LENGTH or _TOKEN.sub("", expression):
        raise ValueError(f"{expression!r} is not an arithmetic expression")
    if not tokens:
        return ""
    try:
        value = float(_operand(tokens, 0))
    except (TypeError, OverflowError, IndexError) as error:  # complex, too large, or an operand is missing
        raise ValueError(f"{expression!r} has no value") from error
    if tokens or not math.isfinite(value):
        raise ValueError(f"{expression!r} has no value")
    return str(int(value)) if value == int(value) and abs(value) < _LARGEST_WHOLE else f"{value:.12g}"


def _operand(tokens: list[str], precedence: int) -> Any:
    """Evaluate and remove the first tokens, up to the first operator that does not exceed `precedence`."""
    token = tokens.pop(0)
    value: Any
    if token == "(":
        value = _operand(tokens, 0)
        if tokens.pop(0) != ")":
            raise ValueError("a bracket is not closed")
    elif token in _UNARY:
        value = _UNARY[token](_operand(tokens, _UNARY_PRECEDENCE))
    elif token in ("pi", "e"):
        value = _NAMES[token]
    else:
        value = float(token) if "." in token else int(token)
    while tokens and tokens[0] in _BINARY and _BINARY[tokens[0]][0] > precedence:
        operator_precedence, apply = _BINARY[tokens.pop(0)]
        value = apply(value, _operand(tokens, operator_precedence))
    return value


def _rounded(value: float, places: int) -> float:
    """Round halves away from zero, as PHP does."""
    if abs(places) > _MAX_PLACES:
        return value
    scaled = abs(value) * 10.0**places
    return math.copysign(math.floor(float(f"{scaled:.14g}") + 0.5) / 10.0**places, value)


def python_value(expression: str) -> str | None:
    """Return the value of a numeric Python expression as text, or None if it has no value."""
    if len(expression) > _MAX_LENGTH or not _ALLOWED_IN_PYTHON.fullmatch(expression):
        return None
    try:
        value = _value(ast.parse(expression, mode="eval").body)
    except _ERRORS:
        return None
    return str(value)


def _power(base: Any, power: Any) -> Any:
    if abs(power) > _MAX_POWER or abs(base) > 1e9:
        raise ValueError(f"{base} to the power of {power} is too large")
    return base**power


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand)
        case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
            return _OPERATORS[type(sign)](_value(left), _value(right))
        case ast.BoolOp(op=sign, values=[first, *others]):
            value = _value(first)
            # As in Python, operands after the first decisive operand are not evaluated.
            decides = bool(value) == isinstance(sign, ast.Or)
            return value if decides or not others else _value(ast.BoolOp(op=sign, values=others))
        case ast.Name(id=name) if not callable(_NAMES[name]):
            return _NAMES[name]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if callable(_NAMES[name]):
            return _NAMES[name](*map(_value, arguments))
    raise ValueError(f"{type(node).__name__} is not allowed in an arithmetic expression")
