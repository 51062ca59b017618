"""`pytest -p support.pretended_cuda.plugin` with `tests` on PYTHONPATH: suites on pretended CUDA."""

import support.pretended_cuda.device as pretended  # isort: skip  # before torch
