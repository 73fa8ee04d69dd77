// Logs in by each case of a file (JSON), writes records, reads them back, and says how that ended; `secured.js CASES.json`.
const { readFileSync } = require("node:fs");
const { setTimeout: sleep } = require("node:timers/promises");
const { Kafka, logLevel } = require("kafkajs");

async function token(url) {
  return { value: (await (await fetch(url)).json()).access_token };
}

function settings(one) {
  const made = {
    clientId: one.name,
    brokers: [one.bootstrap],
    logLevel: logLevel.NOTHING,
    connectionTimeout: 20_000,
    retry: { retries: one.seconds ? 8 : 1 },
  };
  if (one.ca) {
    const own = one.certificate ? readFileSync(one.certificate) : undefined;
    made.ssl = { ca: [readFileSync(one.ca)], cert: own, key: own };
  }
  if (one.mechanism === "OAUTHBEARER") {
    made.sasl = { mechanism: "oauthbearer", oauthBearerProvider: () => token(one.token_url) };
  } else if (one.mechanism) {
    made.sasl = { mechanism: one.mechanism.toLowerCase(), username: one.user, password: one.password };
  }
  return made;
}

async function run(one) {
  const kafka = new Kafka(settings(one));
  const producer = kafka.producer();
  try {
    await producer.connect();
  } catch (error) {
    return `refused: ${error.message}`;
  }
  const until = Date.now() + one.seconds * 1000;
  let sent = 0;
  while (sent === 0 || Date.now() < until) {
    await producer.send({ topic: one.topic, messages: [{ value: String(sent) }] });
    sent += 1;
    await sleep(50);
  }
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: one.topic, heartbeatInterval: 500, maxWaitTimeInMs: 500 });
  await consumer.connect();
  await consumer.subscribe({ topic: one.topic, fromBeginning: true });
  let read = 0;
  await new Promise((done, failed) => {
    consumer.on(consumer.events.CRASH, (event) => failed(event.payload.error));
    consumer.run({
      eachMessage: async () => {
        read += 1;
        if (read === sent) done();
      },
    });
  });
  await consumer.disconnect();
  return "ok";
}

async function main() {
  const cases = JSON.parse(readFileSync(process.argv[2]));
  const told = {};
  await Promise.all(
    cases.map(async (one) => {
      told[one.name] = await run(one).catch((error) => `failed: ${error.message}`);
    }),
  );
  console.log(JSON.stringify(told));
}

main();
