# The image of k8s/, for GPUs:  docker build -t switchyard:0.1.0 .
FROM python:3.11-slim

# KubeRay's probes call wget; Triton compiles its kernels' launchers with gcc.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev wget \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY requirements/gpu.lock requirements/gpu.lock
RUN pip install --no-cache-dir --requirement requirements/gpu.lock

COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
    && python -m deployments.haproxy /app/bin

RUN useradd --create-home --uid 1000 switchyard
USER switchyard
ENV PYTHONPATH=/app
CMD ["switchyard", "--help"]
