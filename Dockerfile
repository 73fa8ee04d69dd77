# A broker in a container, for suites and compose files that have one of Apache Kafka's images now.
# Nobody builds this file in the project's checks (they have no Docker): tell us if it does not build.
#   docker build -t barnabas . && docker run --rm -p 9092:9092 -e KAFKA_NUM_PARTITIONS=3 barnabas
FROM python:3.13-slim

COPY . /src
RUN pip install --no-cache-dir /src && rm -rf /src \
    && useradd --system --uid 1000 barnabas \
    && install -d -o barnabas /var/lib/barnabas

USER barnabas
VOLUME /var/lib/barnabas
EXPOSE 9092
# The HTTP API listens to the container only: publish it with -e KAFKA_HTTP_LISTENERS=http://0.0.0.0:8080 and a token.
ENV KAFKA_HTTP_LISTENERS=http://127.0.0.1:8080
HEALTHCHECK --interval=2s --timeout=2s --start-period=10s --retries=5 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=2)"]
ENTRYPOINT ["barnabas", "start", "--profile", "docker", "--data", "/var/lib/barnabas"]
