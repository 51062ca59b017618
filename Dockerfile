# pretrainkit in a container, for CPUs or, by a build argument, for NVIDIA GPUs. docs/installing.md shows how to use it.
#
#     docker build --tag pretrainkit .
#     docker build --tag pretrainkit:cuda --build-arg TORCH_BACKEND=cu130 .
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm

# The build of torch, as `uv pip install --torch-backend` names it: cpu, cu126, cu128, cu130, ...
ARG TORCH_BACKEND=cpu
# Optional packages, as pyproject.toml names them.
ARG EXTRAS=demo,hub,text-metrics

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# The compiler builds the helpers of the data path, and torch.compile calls it when a model runs. Pango draws text.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ libpangocairo-1.0-0 \
    && rm -rf /var/lib/apt/lists/*

# torch has a layer of its own, which changes of the sources do not rebuild.
COPY constraints.txt /src/
RUN python -m pip install --no-cache-dir 'uv>=0.8' \
    && python -m venv /opt/pretrainkit \
    && uv pip install --no-cache --python /opt/pretrainkit --torch-backend "$TORCH_BACKEND" \
        --constraint /src/constraints.txt torch torchvision

COPY pyproject.toml setup.py README.md LICENSE /src/
COPY src /src/src
RUN PRETRAINKIT_REQUIRE_HELPERS=1 uv pip install --no-cache --python /opt/pretrainkit --torch-backend "$TORCH_BACKEND" \
        --constraint /src/constraints.txt "/src[$EXTRAS]"

RUN useradd --uid 1000 --create-home pretrainkit && mkdir /work && chown 1000 /work
USER 1000
WORKDIR /work
ENV PATH="/opt/pretrainkit/bin:$PATH"
ENTRYPOINT ["pretrainkit"]
CMD ["--help"]
