// A broker for a test in JavaScript: it starts `barnabas`, and sends commands to its control API.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

export class Barnabas {
  // Resolves when the broker serves. `settings` are Kafka's, as { "num.partitions": 3 }.
  static async start(settings = {}) {
    const words = Object.entries(settings).flatMap(([key, value]) => ["--set", `${key}=${value}`]);
    const broker = new Barnabas();
    broker.process = spawn("barnabas", ["start", "--profile", "ci", "--port", "0", "--json", ...words], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const [line] = await Promise.race([
      once(createInterface({ input: broker.process.stdout }), "line"),
      once(broker.process, "exit").then(() => Promise.reject(new Error("the broker did not start; its log says why"))),
    ]);
    const ready = JSON.parse(line);
    broker.bootstrap = ready.bootstrap;
    broker.control = `http://${ready.http}/v1/control`;
    return broker;
  }

  // One command, as ask("POST", "rules", { effect: "cut" }); throws with the broker's own words if it is refused.
  async ask(method, path, body) {
    const answer = await fetch(`${this.control}/${path}`, {
      method,
      headers: { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const document = await answer.json();
    if (!answer.ok) throw new Error(document.error.message);
    return document;
  }

  async stop() {
    this.process.kill();
    if (this.process.exitCode === null) await once(this.process, "exit");
  }
}
