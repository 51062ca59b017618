"""Equality of two steps of a task: their code and what it uses, in every process."""

import functools
import json
import os
import re
import subprocess
import sys

import numpy as np

from pretrainkit.tasks.identity import identity
from pretrainkit.tasks.preprocessors import Tokenize, format_strings, rekey
from pretrainkit.tasks.sources import Tsv
from pretrainkit.tasks.vocabulary import ByteVocabulary

CODE = """
import json
from pretrainkit.tasks.identity import identity
LABELS = {"a": 1, "b": [2, 3]}
def helper(x):
    return x in {"one", "two", "three", "four"}
def step(example, k={"x", "y"}):
    def inner(x):
        return helper(x) or LABELS
    return inner(example)
def recursive(n):
    return recursive(n - 1) if n else 0
print(json.dumps([identity(step), identity(recursive)]))
"""


def of_code(code, hash_seed="0"):
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_code_is_equal_in_every_process_and_differs_after_an_edit_of_its_dependencies():
    first = of_code(CODE, "1")
    assert of_code("\n\n" + CODE, "2") == first
    edited = {}
    exec(CODE.replace("[2, 3]", "[2, 4]").replace("print", "str"), edited)
    plain = {}
    exec(CODE.replace("print", "str"), plain)
    other = {}
    exec(CODE.replace('"four"', '"five"').replace("print", "str"), other)
    found = [json.dumps(identity(names["step"])) for names in (plain, edited, other)]
    assert len(set(found)) == 3


def test_enclosed_values_defaults_and_settings_count():
    def made(value):
        return lambda example, more=value: (value, more)

    assert identity(made(1)) == identity(made(1)) != identity(made(2))
    assert identity(functools.partial(max, key=1)) != identity(functools.partial(max, key=2))
    assert identity(rekey({"a": "b"})) == identity(rekey({"a": "b"})) != identity(rekey({"a": "c"}))
    assert identity(format_strings(a="x")) != identity(format_strings(a="y"))
    assert identity(Tokenize(True)) != identity(Tokenize(False))


def test_rewording_a_preprocessor_of_pretrainkit_changes_nothing_and_its_version_does(monkeypatch):
    step = format_strings(a="x")
    before = identity(step)
    call = type(step).__call__
    reworded = call.__code__.replace(co_consts=("Other words.", *call.__code__.co_consts[1:]))
    monkeypatch.setattr(call, "__code__", reworded)
    assert identity(step) == before
    monkeypatch.setattr("pretrainkit.tasks.identity._OWN_CODE", "2")
    assert identity(step) != before


def test_every_kind_of_value_has_a_json_form():
    cyclic = []
    cyclic.append(cyclic)
    values = [
        1,
        2.5,
        "a",
        b"b",
        None,
        {1: {2, 3}},
        re.compile("x"),
        np.float32(3),
        np.arange(3),
        ByteVocabulary(),
        cyclic,
    ]
    forms = [json.dumps(identity(value)) for value in values]
    assert len(set(forms)) == len(values)
    assert identity(np.arange(3)) != identity(np.arange(3, dtype=np.int8))
    assert identity("again".upper) == identity("again".upper)


def test_modules_that_moved_keep_the_names_that_caches_know():
    assert identity(Tsv({"train": "a.tsv"}))[1] == "pretrainkit.data." + "task_sources.Tsv"
    assert identity(ByteVocabulary)[1:] == ["pretrainkit.data." + "vocabulary", "ByteVocabulary"]
