"""Generated examples without a time limit each: machines that run tests are busy."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
