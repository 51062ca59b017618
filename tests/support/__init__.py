"""Shared code of tests: generated data, small models, stand-ins of other systems, scripts for processes of their
own."""

from pathlib import Path

SUPPORT = Path(__file__).parent
