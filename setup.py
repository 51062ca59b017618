"""The compiled parts: word counts, span corruption, span masks, spans of 4M. Optional: without a compiler Python does
it, with equal results."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"pretrainkit.{name}",
            [f"src/pretrainkit/{name.replace('.', '/')}.c"],
            include_dirs=["src/pretrainkit"],
            depends=["src/pretrainkit/_draws.h"],
            extra_compile_args=["-O3"],
            optional=True,
        )
        for name in ("corpus._words", "recipes.t5._spans", "recipes.pixel._masks", "recipes.fourm._keep")
    ]
)
