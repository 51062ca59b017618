"""The one compiled part, word counts. Optional: without a compiler the package counts in Python, with equal results."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "pretrainkit.corpus._words",
            ["src/pretrainkit/corpus/_words.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
