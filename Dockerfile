# Foretune on CPUs, from the wheel:
#   docker build -t foretune . && docker run --rm -v "$PWD:/data" foretune campaign quantized_matvec
FROM python:3.11-slim AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist /source

FROM python:3.11-slim
# A compiler for sources in C; the built-in kernels bring their own.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir "$(echo /dist/foretune-*.whl)[cpu,track]"
# Stores and caches are kept if /data is a volume.
ENV FORETUNE_STORE=/data/tuned.db FORETUNE_CACHE=/data/.cache
WORKDIR /data
ENTRYPOINT ["foretune"]
CMD ["doctor"]
