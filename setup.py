"""The compiled helpers of the data path: word counts, span corruption, span masks, spans of 4M. Optional: without a
compiler Python does it, with equal results."""

from setuptools import Extension, setup


def _extension(name: str) -> Extension:
    return Extension(
        f"pretrainkit.{name}",
        [f"src/pretrainkit/{name.replace('.', '/')}.c"],
        include_dirs=["src/pretrainkit"],
        depends=["src/pretrainkit/_draws.h"],
        extra_compile_args=["-O3"],
        optional=True,
    )


_HELPERS = ("corpus._words", "recipes.t5._spans", "recipes.pixel._masks", "recipes.fourm._keep")

setup(ext_modules=[_extension(name) for name in _HELPERS])
