"""`python mutate.py`: change the code in one place, run the tests that should notice, and undo it; again and again.

A changed place is a *mutant*: another comparison or operator, another number, a condition that is inverted, a value or
a statement that is left out. Tests *kill* a mutant if one of them fails or never ends. A mutant that survives shows
behavior that no test looks at, or a change that means the same. Texts of messages, type annotations, decorators and
docstrings are not changed.

Each mutant has a process that is forked after torch was imported, and imports pretrainkit from a copy of `src` that
consists of links but for the changed file. The results are kept in --results, so that a later call continues. Someone
who looked at a mutant that survived writes there, beside its "change", either "equal": why it means the same, or
"reason": why no test kills it. Equal mutants do not count.
"""

import argparse
import ast
import copy
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from processes import SOURCE, TESTS, revision

_TWO_RANKS = "training/test_two_ranks.py::test_fact_37_two_ranks_make_the_update_of_one"
_GOLDEN_DRAWS = "test_golden_files.py::test_first_random_choices_are_golden"
MODULES: dict[str, tuple[str, ...]] = {
    "data/order.py": ("data/test_order.py", "data/test_turns.py", "data/test_permutation.py"),
    "data/permutation.py": ("data/test_permutation.py", "data/test_order.py"),
    "data/plan.py": ("data/test_plan.py",),
    "data/turns.py": ("data/test_mixture.py", "data/test_turns.py"),
    "training/accumulate.py": ("training/test_accumulate.py", "recipes/clip/test_clip_two_ranks.py"),
    "training/checkpoints/checkpoint.py": ("training/test_checkpoint.py",),
    "training/checkpoints/files.py": ("training/test_checkpoint.py", "training/test_best.py"),
    "training/checkpoints/tensors.py": ("training/test_checkpoint.py", "dist/test_dist_two_ranks.py"),
    "training/checkpoints/best.py": ("training/test_best.py", "end_to_end/test_best_and_early.py"),
    "training/optimizers/schedule.py": ("training/test_schedule.py",),
    "training/optimizers/adafactor.py": (
        "training/test_adafactor.py",
        "training/test_relative_steps.py",
        "training/test_stacked.py",
        _TWO_RANKS,
    ),
    "training/optimizers/muon.py": ("training/test_muon.py", "training/test_stacked.py", _TWO_RANKS),
    "training/optimizers/build.py": (
        "training/test_build.py",
        "training/test_parameter_groups.py",
        "training/test_layer_decay.py",
        "test_golden_files.py",
    ),
    "training/optimizers/parameters.py": (
        "training/test_parameters.py",
        "training/test_build.py",
        "training/test_adafactor.py",
        "training/test_stacked.py",
        _TWO_RANKS,
    ),
    "eval/metrics.py": ("eval/metrics",),
    "eval/retrieval.py": ("eval/test_retrieval.py",),
    "recipes/bert/masking.py": (
        "recipes/bert/test_masking.py",
        "recipes/bert/test_fill_masks.py",
        _GOLDEN_DRAWS,
    ),
    "recipes/bert/chunks.py": (
        "recipes/bert/test_chunks.py",
        "recipes/bert/test_sentence_order_facts.py",
        "recipes/bert/test_index_cache.py",
    ),
    "recipes/t5/spans.py": ("recipes/t5/test_t5_spans.py", _GOLDEN_DRAWS),
    "recipes/t5/segments.py": ("recipes/t5/test_t5_segments.py", "recipes/t5/test_t5_source.py"),
    "recipes/t5/features.py": ("recipes/t5/test_t5_features.py", "recipes/t5/test_t5_task_source.py"),
    "recipes/pixel/masking.py": ("recipes/pixel/test_pixel_masking.py", "recipes/pixel/test_pixel_facts.py"),
    "recipes/fourm/masking.py": (
        "recipes/fourm/test_fourm_masking.py",
        "recipes/fourm/test_fourm_budgets.py",
        "recipes/fourm/test_hidden_spans.py",
        "recipes/fourm/test_fourm_keep.py",
        _GOLDEN_DRAWS,
    ),
}
"""Modules to change, and the tests of each, below src/pretrainkit and tests."""
RESULTS = TESTS.parent / "docs" / "reliability-mutants.json"
COMPARISONS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.UAdd: ast.USub,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "argmax": "argmin", "amax": "amin", "floor": "ceil"}


class Place(NamedTuple):
    """A possible change: the place of a node in the order of `ast.walk`, and the number of the change there."""

    node: int
    choice: int


def changes(node: ast.AST) -> Iterator[Callable[[], None]]:
    """Yield functions that each change the node in place."""
    match node:
        case ast.Compare():
            for index, kind in enumerate(map(type, node.ops)):
                yield lambda index=index, kind=kind: node.ops.__setitem__(index, COMPARISONS[kind]())  # type: ignore[misc]
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in OPERATORS:
            yield lambda: setattr(node, "op", OPERATORS[type(node.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda: _become(node, node.operand)
        case ast.UnaryOp(op=ast.USub()):
            yield lambda: setattr(node, "op", ast.UAdd())
        case ast.Constant(value=bool()):
            yield lambda: setattr(node, "value", not node.value)
        case ast.Constant(value=int() | float()):
            yield lambda: setattr(node, "value", node.value + 1)
        case ast.Name(id=name) if name in NAMES:
            yield lambda: setattr(node, "id", NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield lambda: setattr(node, "attr", NAMES[name])
        case ast.If() | ast.IfExp() | ast.While():
            yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.Expr(value=ast.Call()):
            yield lambda: setattr(node, "value", ast.Constant(None))
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield lambda: setattr(node, "value", ast.Constant(None))
        case ast.Break():
            yield lambda: _become(node, ast.Continue())
        case ast.Continue():
            yield lambda: _become(node, ast.Break())


def _become(node: Any, other: ast.AST) -> None:
    """Turn a node into another one, in place."""
    lines = {name: value for name, value in vars(node).items() if name.endswith(("lineno", "offset"))}
    node.__class__, node.__dict__ = other.__class__, lines | vars(other)


def places(tree: ast.Module) -> list[tuple[Place, int]]:
    """Return all possible changes of a module, with their lines."""
    skipped = {id(inner) for node in ast.walk(tree) for part in _untouched(node) for inner in ast.walk(part)}
    return [
        (Place(number, choice), node.lineno)  # type: ignore[attr-defined]
        for number, node in enumerate(ast.walk(tree))
        if id(node) not in skipped
        for choice, _ in enumerate(changes(node))
    ]


def _untouched(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that are not changed: annotations, decorators, messages."""
    match node:
        case ast.AnnAssign():
            yield node.annotation
        case ast.ClassDef():
            yield from node.decorator_list
        case ast.FunctionDef():
            yield from (*node.decorator_list, *((node.returns,) if node.returns else ()))
            yield from (arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg) and arg.annotation)
        case ast.Raise() | ast.JoinedStr() | ast.Assert():
            yield node
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            yield node
        case ast.keyword(arg="strict"):  # zip's check of our own lengths, like an assert
            yield node.value
        case ast.Call(func=ast.Name(id="cast" | "overload" | "TypeVar")):
            yield node


def mutated(tree: ast.Module, place: Place) -> str:
    """Return the code with one change."""
    tree = copy.deepcopy(tree)
    node = next(node for number, node in enumerate(ast.walk(tree)) if number == place.node)
    next(change for choice, change in enumerate(changes(node)) if choice == place.choice)()
    return ast.unparse(ast.fix_missing_locations(tree))


def described(tree: ast.Module, code: str) -> str:
    """Return the lines that a change removes and adds."""
    before, after = ast.unparse(tree).splitlines(), code.splitlines()
    pairs = [(old, new) for old, new in zip(before, after) if old != new]
    old, new = pairs[0] if pairs else (before[-1], after[-1])
    return f"{old.strip()}  ->  {new.strip()}"


def linked_copy(folder: Path) -> Path:
    """Return a copy of `src` in which all files are links. Bytecode is not written."""
    for path in SOURCE.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and "egg-info" not in path.as_posix():
            link = folder / path.relative_to(SOURCE)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    return folder


def run_tests(source: Path, tests: tuple[str, ...], seconds: float) -> tuple[int, float]:
    """Run the tests with the package in `source`, in a fork of this process. Return pytest's exit code, and the
    seconds; the code of a run that takes longer than `seconds` is -1."""
    begin, child = time.monotonic(), os.fork()
    if not child:
        os.setsid()
        os.environ["PYTHONPATH"] = os.pathsep.join((str(source), str(TESTS)))
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.path[:0] = [str(source), str(TESTS)]
        sys.dont_write_bytecode = True
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.chdir(TESTS.parent)
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        os._exit(pytest.main([*options, *(str(TESTS / test) for test in tests)]))
    code = -1
    while time.monotonic() - begin < seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError):  # also processes that the tests started
        os.killpg(child, signal.SIGKILL)
    if code == -1:
        os.waitpid(child, 0)
    return code, time.monotonic() - begin


def campaign(arguments: argparse.Namespace) -> dict[str, Any]:
    """Try mutants until the time is over. Return the results of all calls."""
    import hypothesis  # noqa: F401  # these two here, so that forks share them
    import torch  # noqa: F401

    results: dict[str, Any] = json.loads(arguments.results.read_text()) if arguments.results.is_file() else {}
    deadline = time.monotonic() + 60 * arguments.minutes
    with TemporaryDirectory() as folder:
        source = linked_copy(Path(folder))
        for name in arguments.modules:
            tests, original = MODULES[name], SOURCE / "pretrainkit" / name
            tree, file = ast.parse(original.read_text("utf-8")), source / "pretrainkit" / name
            row = results.setdefault(name, {"tried": {}, "killed": 0, "survived": []})
            drawn = [place for place, _ in places(tree)]
            random.Random(f"{arguments.seed} {name}").shuffle(drawn)
            row |= {"revision": revision(), "possible": len(drawn)}
            seed, survived = str(arguments.seed), {kept["change"]: kept for kept in row["survived"]}
            first = row["tried"].get(seed, 0)
            codes = [mutated(tree, place) for place in drawn[first : arguments.mutants]]
            tried = [(described(tree, code), code, True) for code in codes]
            if arguments.again:
                # A change is identified by its text, because places move when a module changes.
                known = {described(tree, code): code for code in (mutated(tree, place) for place in drawn)}
                unknown = [change for change, kept in survived.items() if not {"equal", "reason"} & kept.keys()]
                tried[:0] = [(change, known[change], False) for change in unknown if change in known]
            if not tried:
                continue
            code, seconds = run_tests(source, tests, 900)
            if code:
                sys.exit(f"the tests of {name} fail without a change: {' '.join(tests)}")
            for change, changed, is_new in tried:
                if time.monotonic() > deadline:
                    break
                file.unlink()
                file.write_text(changed, encoding="utf-8")
                code, _ = run_tests(source, tests, 20 + 5 * seconds)
                kept = survived.setdefault(change, {"change": change, "times": 0})
                if is_new:
                    row["tried"][seed] = row["tried"].get(seed, 0) + 1
                    kept["times"] += 1  # another seed may draw a mutant again
                if code:
                    row["killed"] += survived.pop(change)["times"]
                else:
                    print(f"{name}: {change}", flush=True)
                row["survived"] = list(survived.values())
                arguments.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            file.unlink()
            file.symlink_to(original)
    return results


def main() -> None:
    """Run a campaign and print its table. Ends with 1 if the tests of a module kill fewer than 90 % of its mutants."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=list(MODULES), metavar="FILE")
    parser.add_argument("--mutants", type=int, default=50, help="mutants of each module, drawn by the seed")
    parser.add_argument("--minutes", type=float, default=30, help="time for this call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="first try those that survived and have no reason yet")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file with the results, which a call continues")
    results = campaign(parser.parse_args())
    print("| module | mutants tried | of | killed | equal | survived | killed of those not equal |")
    print("|---|---|---|---|---|---|---|")
    rows = {f"`{name}`": _counts(row) for name, row in results.items()}
    for name, counts in (rows | {"all": sum(rows.values(), Counter())}).items():
        share = counts["killed"] / (counts["tried"] - counts["equal"])
        print(f"| {name} |", *(f"{counts[key]} |" for key in _COUNTED), f"{share:.0%} |")
    sys.exit(any(counts["killed"] < 0.9 * (counts["tried"] - counts["equal"]) for counts in rows.values()))


_COUNTED = ("tried", "possible", "killed", "equal", "survived")


def _counts(row: dict[str, Any]) -> Counter[str]:
    tried, equal = sum(row["tried"].values()), sum(kept["times"] for kept in row["survived"] if "equal" in kept)
    counts = (tried, row["possible"], row["killed"], equal, tried - row["killed"] - equal)
    return Counter(dict(zip(_COUNTED, counts, strict=True)))


if __name__ == "__main__":
    main()
