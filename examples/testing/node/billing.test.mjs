// A service's tests with KafkaJS; `node --test`.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import kafkajs from "kafkajs";
import { Barnabas } from "./barnabas.mjs";

let broker, kafka;
before(async () => {
  broker = await Barnabas.start();
  kafka = new kafkajs.Kafka({ clientId: "billing", brokers: [broker.bootstrap], logLevel: kafkajs.logLevel.NOTHING });
});
after(() => broker.stop());

async function send(...values) {
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic: "orders", messages: values.map((value) => ({ value })) });
  await producer.disconnect();
}

async function ends() {
  const admin = kafka.admin();
  await admin.connect();
  const [{ high }] = await admin.fetchTopicOffsets("orders");
  await admin.disconnect();
  return Number(high);
}

test("a group reads to the end although its first commit is slow", async () => {
  await send("a", "b", "c");
  const fault = await broker.ask("POST", "rules", { effect: "delay", api: "OffsetCommit", ms: 200, times: 1 });
  const consumer = kafka.consumer({ groupId: "billing", heartbeatInterval: 100, maxWaitTimeInMs: 100 });
  await consumer.connect();
  await consumer.subscribe({ topic: "orders", fromBeginning: true });
  await consumer.run({ autoCommitThreshold: 1, eachMessage: async () => {} });
  const seen = await broker.ask("GET", "groups/billing/wait?lag=0&members=1&timeout_ms=30000");
  assert.equal(seen.lag, 0);
  await consumer.disconnect();
  assert.equal((await broker.ask("DELETE", `rules/${fault.id}`)).fired, 1);
});

test("everything is put back", async () => {
  const { folder } = await broker.ask("POST", "snapshots", {});
  const before = await ends();
  await send("d");
  assert.equal(await ends(), before + 1);
  await broker.ask("POST", "restore", { folder });
  assert.equal(await ends(), before);
  await assert.rejects(broker.ask("POST", "rules", { effect: "error", error: "NONSENSE" }), /Kafka has no error/);
});
