"""A process of its own for test_spark_kafka.py: Spark's own Kafka source and sink, which are a jar, against a broker.

python spark_kafka_job.py BROKERS FOLDER
"""

import sys

import pyspark
from barnabas.pipeline.session import start_session
from spark_settings import SMALL

PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
COUNT = 1000


def main(brokers: str, folder: str) -> None:
    """Write a topic, read it, and copy it as a stream."""
    spark = start_session("kafka", SMALL | {"spark.jars.packages": PACKAGE, "spark.local.dir": f"{folder}/local"})
    made = spark.range(COUNT).selectExpr(
        "cast(id as string) key",
        "cast(id * 2 as string) value",
        "array(struct('number' as key, cast(cast(id as string) as binary) as value)) headers",
    )
    made.write.format("kafka").option("kafka.bootstrap.servers", brokers).option("topic", "made").save()

    def options(topic: str) -> dict[str, str]:
        earliest = {"startingOffsets": "earliest", "includeHeaders": "true"}
        return {"kafka.bootstrap.servers": brokers, "subscribe": topic, **earliest}

    read = spark.read.format("kafka").options(**options("made")).load()
    assert read.where("cast(cast(value as string) as int) = 2 * cast(cast(key as string) as int)").count() == COUNT
    assert read.where("cast(headers[0].value as string) = cast(key as string)").count() == COUNT
    stream = spark.readStream.format("kafka").options(**options("made")).option("maxOffsetsPerTrigger", 300).load()
    writer = stream.select("key", "value").writeStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    writer = writer.option("topic", "copied").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
