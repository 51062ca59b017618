"""Build the compiled helpers of the data path: word counts, span corruption, span masks, spans of 4M.

They are optional. Where there is no compiler, the package installs without them and Python computes equal results more
slowly; `pretrainkit doctor` names the missing ones. They need the C library and Python.h only, no OpenMP, so that
Apple's clang builds them as well. PRETRAINKIT_REQUIRE_HELPERS=1 makes a failure an error, as releases need it.
"""

import os

from setuptools import Extension, setup


def _extension(name: str) -> Extension:
    return Extension(
        f"pretrainkit.{name}",
        [f"src/pretrainkit/{name.replace('.', '/')}.c"],
        include_dirs=["src/pretrainkit"],
        depends=["src/pretrainkit/_draws.h"],
        extra_compile_args=["-O3"],
        optional=os.environ.get("PRETRAINKIT_REQUIRE_HELPERS", "0") == "0",
    )


_HELPERS = ("corpus._words", "recipes.t5._spans", "recipes.pixel._masks", "recipes.fourm._keep")

setup(ext_modules=[_extension(name) for name in _HELPERS])
