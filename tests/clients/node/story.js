// A story told by KafkaJS, whose own protocol code knows old versions of every API.
// It ends with exit code 1 at the first thing that is not as it must be; `node story.js HOST:PORT,… TOPIC`.
const assert = require("node:assert/strict");
const { setTimeout: sleep } = require("node:timers/promises");
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "story", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });

async function produce(options, compression, numbers) {
  const producer = kafka.producer(options);
  await producer.connect();
  const messages = numbers.map((number) => ({
    key: `key ${number}`,
    value: `value ${number}`,
    headers: { number: String(number) },
    timestamp: String(1_700_000_000_000 + number),
    partition: number % 2,
  }));
  await producer.send({ topic, messages, compression });
  await producer.disconnect();
}

// Runs a group's member until it has seen `count` records; auto-commit stores where it was.
async function read(count) {
  const consumer = kafka.consumer({ groupId: topic, heartbeatInterval: 200, maxWaitTimeInMs: 200 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const seen = [];
  await new Promise((done, failed) => {
    consumer.on(consumer.events.CRASH, (event) => failed(event.payload.error));
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        seen.push({ partition, message });
        if (seen.length === count) done();
      },
    });
  });
  await consumer.disconnect();
  return seen;
}

function range(start, end) {
  return Array.from({ length: end - start }, (_, index) => start + index);
}

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  // The story's records are old: retention would be right to take them.
  const wanted = { topic, numPartitions: 2, configEntries: [{ name: "retention.ms", value: "-1" }] };
  assert.equal(await admin.createTopics({ topics: [wanted] }), true);
  assert.equal(await admin.createTopics({ topics: [wanted] }), false);

  // The client gets a topic that is created by asking for it with the first answer: it need not try again. Among several
  // brokers the new leader may hear of the topic after the client, as with Kafka.
  const hasty = kafka.producer({ retry: { retries: bootstrap.includes(",") ? 5 : 0 } });
  await hasty.connect();
  await hasty.send({ topic: `${topic}-by-asking`, messages: [{ value: "first" }] });
  await hasty.disconnect();

  await produce({ idempotent: true, maxInFlightRequests: 1 }, CompressionTypes.GZIP, range(0, 60));
  await produce({}, CompressionTypes.None, range(60, 90));
  const first = await read(90);
  for (const { partition, message } of first) {
    const number = Number(message.offset) * 2 + partition;
    assert.equal(message.value.toString(), `value ${number}`);
    assert.equal(message.key.toString(), `key ${number}`);
    assert.equal(message.headers.number.toString(), String(number));
    assert.equal(message.timestamp, String(1_700_000_000_000 + number));
  }

  await produce({}, CompressionTypes.GZIP, range(90, 100));
  const second = await read(10);
  assert.deepEqual(second.map(({ message }) => Number(message.offset)).sort(), [45, 45, 46, 46, 47, 47, 48, 48, 49, 49]);
  const [committed] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
  assert.deepEqual(committed.partitions.map(({ offset }) => offset), ["50", "50"]);
  const offsets = await admin.fetchTopicOffsetsByTimestamp(topic, 1_700_000_000_010);
  assert.equal(offsets.find(({ partition }) => partition === 0).offset, "5");

  // At once; but if the coordinator has moved while the member left, when the member's session is over.
  while ((await admin.describeGroups([topic])).groups[0].state !== "Empty") await sleep(200);
  await admin.deleteGroups([topic]);
  await admin.deleteTopics({ topics: [topic] });
  await admin.disconnect();
  console.log(`${first.length + second.length} records`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
