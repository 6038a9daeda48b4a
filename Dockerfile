# Two stages: the toolchain builds, and the image is Debian with two binaries. Neither needs a GPU
# toolkit: compiled kernels are in the sources, and the driver's library is found at start if the
# NVIDIA Container Toolkit provides it. `deploy/check-image.sh` runs these steps without a container
# engine.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY assets ./assets
COPY benches ./benches
COPY crates ./crates
COPY src ./src
COPY tools ./tools
RUN cargo build --locked --profile dist --package ncserverd --bins

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates openssl \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --user-group --no-create-home --home-dir /var/lib/ncserverd ncserverd \
 && install -d -o ncserverd -g ncserverd -m 0700 /var/lib/ncserverd
COPY --from=build /src/target/dist/ncserverd /src/target/dist/ncpeer /usr/bin/
COPY config/ncserverd.toml /etc/ncserverd/ncserverd.toml
# Peers cannot reach loopback in a container, and state belongs on a volume. The operator decides
# who is served: NCSERVERD_ADMISSION__KEYS or NCSERVERD_ADMISSION__INSECURE=true (docs/operating.md,
# "Admission").
LABEL org.opencontainers.image.title="ncserverd"
LABEL org.opencontainers.image.description="Network-coding streaming server over QUIC, and its client ncpeer"
LABEL org.opencontainers.image.licenses="MIT OR Apache-2.0"
LABEL org.opencontainers.image.version="0.1.0"
ENV NCSERVERD_ENDPOINT__LISTEN=[::]:4443
ENV NCSERVERD_TELEMETRY__LISTEN=[::]:9443
ENV STATE_DIRECTORY=/var/lib/ncserverd
# The toolkit provides libcuda and its translator, and nvidia-smi for inspection. The operator
# selects GPUs (`--gpus`, compose.gpu.yaml, k8s/gpu.yaml, or NVIDIA_VISIBLE_DEVICES): "all" here
# would take every GPU of a host unasked.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /var/lib/ncserverd
VOLUME /var/lib/ncserverd
EXPOSE 4443/udp 9443/tcp
STOPSIGNAL SIGTERM
# Checks that the process lives and answers, which a restart can mend; /readyz says whether it can
# serve. The image has no curl, so bash connects.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9443 && printf 'GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
USER ncserverd
ENTRYPOINT ["/usr/bin/ncserverd"]
CMD ["--config", "/etc/ncserverd/ncserverd.toml", "serve"]
