// What users of @stomp/stompjs do, over WebSocket, one scenario a run:
// node client.mjs SCENARIO ADDRESS [ADDRESS].
// It prints a line of JSON for whatever the test is to judge. With two addresses it prints "takeover"
// amid what it does, and goes on at the second when it reads a line.

import { once } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import { Client } from "@stomp/stompjs";
import { WebSocket } from "ws";

const [, , scenario, ...addresses] = process.argv;
const { STOMP_LOGIN, STOMP_PASSCODE, STOMP_DEAD_LETTERS } = process.env;
const moves = addresses.length > 1;
const last = addresses.at(-1);
// In a value: the client escapes no name. And no letter behind the \, as it unescapes twice.
const awkward = "a:b\\ c\nd ü";
const tell = (what) => console.log(JSON.stringify(what));
const seen = (message) => ({
  body: message.body,
  redelivered: message.headers.redelivered === "true",
});

async function awaitTakeover() {
  tell("takeover");
  await once(process.stdin, "data");
  process.stdin.destroy();
}

// A connection, and what waits for a receipt on it: all of that fails with an ERROR or its end.
class Session {
  #client;
  #waiting = new Set();
  #count = 0;

  // An ERROR that refuses what is asked for rejects with its message.
  static open(address, { headers = {}, passcode = STOMP_PASSCODE, version = "1.2", beats = 0 } = {}) {
    const session = new Session();
    const protocol = `v${version.replace(".", "")}.stomp`;
    session.#client = new Client({
      connectHeaders: { login: STOMP_LOGIN, passcode, ...headers },
      stompVersions: { versions: version, protocolVersions: () => [protocol], supportedVersions: () => version },
      reconnectDelay: 0,
      heartbeatIncoming: beats,
      heartbeatOutgoing: beats,
      heartbeatToleranceMultiplier: 240, // of them it may miss while either side stands still
      webSocketFactory: () => new WebSocket(`ws://${address}/stomp`, [protocol]),
    });
    return session.#until((done) => {
      session.#client.onConnect = () => done(session);
      session.#client.onStompError = (frame) => session.#fail(frame.headers.message);
      session.#client.onWebSocketError = (event) => session.#fail(event.message);
      session.#client.onWebSocketClose = () => session.#fail("the connection is gone");
      session.#client.activate();
    });
  }

  get version() {
    return this.#client.connectedVersion;
  }

  #until(begin) {
    return new Promise((resolve, reject) => {
      this.#waiting.add(reject);
      begin((value) => {
        this.#waiting.delete(reject);
        resolve(value);
      });
    });
  }

  #fail(reason) {
    for (const reject of this.#waiting) reject(new Error(reason));
    this.#waiting.clear();
  }

  // Do something with a receipt, and wait for it.
  receipted(act) {
    return this.#until((done) => {
      const receipt = `r${this.#count++}`;
      this.#client.watchForReceipt(receipt, done);
      act({ receipt });
    });
  }

  send(destination, body, headers = {}, more = {}) {
    return this.receipted((receipt) =>
      this.#client.publish({ destination, body, headers: { ...headers, ...receipt }, ...more }),
    );
  }

  async subscribe(destination, ack = "auto", headers = {}) {
    const inbox = new Inbox(this.#until.bind(this));
    await this.receipted((receipt) => {
      inbox.subscription = this.#client.subscribe(destination, (one) => inbox.put(one), {
        ack,
        ...headers,
        ...receipt,
      });
    });
    inbox.leave = (more = {}) =>
      this.receipted((receipt) => inbox.subscription.unsubscribe({ ...more, ...receipt }));
    return inbox;
  }

  begin() {
    return this.#client.begin();
  }

  // The client has no receipt for it: that of a SEND behind it comes once it is done.
  end(transaction, how) {
    transaction[how]();
    return this.send("/queue/js-after", how);
  }

  ack(message, headers = {}) {
    return this.receipted((receipt) => message.ack({ ...headers, ...receipt }));
  }

  nack(message) {
    return this.receipted((receipt) => message.nack(receipt));
  }

  // Without a word: the node may be gone.
  drop() {
    this.#client.onWebSocketClose = () => {};
    return this.#client.deactivate({ force: true });
  }

  close() {
    this.#client.onWebSocketClose = () => {};
    return this.#client.deactivate();
  }
}

// What a subscription gets, one message after the other.
class Inbox {
  #came = [];
  #wanted = null;
  #until;

  constructor(until) {
    this.#until = until;
  }

  get size() {
    return this.#came.length;
  }

  put(message) {
    this.#came.push(message);
    if (this.#wanted) this.#wanted();
  }

  async next() {
    if (!this.#came.length) await this.#until((done) => (this.#wanted = done));
    this.#wanted = null;
    return this.#came.shift();
  }

  async bodies(count) {
    const all = [];
    while (all.length < count) all.push(seen(await this.next()));
    return all;
  }
}

async function refusal(attempt) {
  try {
    await attempt();
    return "";
  } catch (error) {
    return error.message;
  }
}

// Returns the session, or one with the node that took over, if the test wants a takeover here.
async function successor(session, options) {
  if (!moves) return session;
  await awaitTakeover();
  await session.drop();
  return Session.open(last, options);
}

const scenarios = {
  async login() {
    await (await successor(await Session.open(addresses[0]))).close();
    tell(await refusal(() => Session.open(last, { passcode: "wrong" })));
    const session = await Session.open(last, { beats: 1_000 });
    tell(session.version);
    await session.close();
  },

  async sent() {
    let session = await Session.open(addresses[0]);
    // Bytes are never split by the client, and an acceptor takes frames of 65,536.
    const binaryBody = Uint8Array.from({ length: 60_000 }, (_, index) => index % 256);
    const headers = { "content-type": "a/b", awkward };
    await session.send("/queue/js-sent", undefined, headers, { binaryBody });
    await session.send("/queue/js-sent", "");
    await session.send("/queue/js-sent", "text", {}, { skipContentLengthHeader: true });
    session = await successor(session);
    const inbox = await session.subscribe("/queue/js-sent");
    const message = await inbox.next();
    tell(Buffer.compare(message.binaryBody, binaryBody) === 0);
    tell([message.headers["content-type"], message.headers.awkward]);
    tell(await inbox.bodies(2));
    await session.close();
  },

  async cumulative() {
    let session = await Session.open(addresses[0]);
    for (const number of [0, 1, 2, 3, 4]) await session.send("/queue/js-cumulative", `${number}`);
    const inbox = await session.subscribe("/queue/js-cumulative", "client");
    const messages = [];
    while (messages.length < 5) messages.push(await inbox.next());
    await session.ack(messages[2]);
    await inbox.leave();
    session = await successor(session);
    const again = await session.subscribe("/queue/js-cumulative", "client-individual");
    tell(await again.bodies(2));
    await session.close();
  },

  async nack() {
    let session = await Session.open(addresses[0]);
    await session.send("/queue/js-failing", "bad", { kind: "js" });
    let failing = await session.subscribe("/queue/js-failing", "client-individual");
    let message = await failing.next();
    tell(seen(message));
    await session.nack(message);
    if (moves) {
      session = await successor(session);
      failing = await session.subscribe("/queue/js-failing", "client-individual");
    }
    message = await failing.next();
    tell(seen(message));
    await session.nack(message);
    const dead = await session.subscribe(STOMP_DEAD_LETTERS, "client-individual", { selector: "kind = 'js'" });
    message = await dead.next();
    tell([message.body, message.headers._AMQ_ORIG_QUEUE]);
    await session.ack(message);
    await session.close();
  },

  async transaction() {
    let session = await Session.open(addresses[0]);
    const queue = "/queue/js-transacted";
    await session.send(queue, "first");
    let inbox = await session.subscribe(queue, "client-individual");
    const first = await inbox.next();
    const aborted = session.begin();
    await session.send(queue, "aborted", { transaction: aborted.id });
    await session.ack(first, { transaction: aborted.id });
    await session.end(aborted, "abort");
    const committed = session.begin();
    await session.ack(first, { transaction: committed.id });
    await session.send(queue, "second", { transaction: committed.id });
    await session.send(queue, "beside");
    await session.end(committed, "commit");
    if (moves) {
      session = await successor(session);
      inbox = await session.subscribe(queue, "client-individual");
    }
    tell(await inbox.bodies(2));
    await session.close();
  },

  async durable() {
    const desk = { headers: { "client-id": "js-desk" } };
    const name = { "durable-subscription-name": "js-report" };
    const topic = "/topic/js-durable";
    let session = await Session.open(addresses[0], desk);
    await (await session.subscribe(topic, "client-individual", name)).leave();
    await session.send(topic, "meanwhile");
    if (moves) session = await successor(session, desk);
    else {
      await session.close();
      session = await Session.open(last, desk);
    }
    let inbox = await session.subscribe(topic, "client-individual", name);
    const message = await inbox.next();
    tell(seen(message));
    await session.ack(message);
    await inbox.leave(name);
    await session.send(topic, "to nobody");
    inbox = await session.subscribe(topic, "client-individual", name);
    await session.send(topic, "anew");
    tell(await inbox.bodies(1));
    await inbox.leave(name);
    await session.close();
    session = await Session.open(last);
    tell(await refusal(() => session.subscribe(topic, "auto", name)));
  },

  async selector() {
    let session = await Session.open(addresses[0]);
    const queue = "/queue/js-selected";
    const offer = (area, price) => session.send(queue, `${area} ${price}`, { area, price });
    for (const [area, price] of [["Asia", "9"], ["Europe", "1"], ["Europe", "3"]]) await offer(area, price);
    session = await successor(session);
    const inbox = await session.subscribe(queue, "auto", { selector: "area = 'Europe' AND price > 2.5" });
    await offer("Asia", "8");
    await offer("Europe", "4");
    tell(await inbox.bodies(2));
    tell(await refusal(() => session.subscribe(queue, "auto", { selector: "area = " })));
  },

  async delay() {
    let session = await Session.open(addresses[0], { beats: 500 });
    const began = performance.now();
    await session.send("/queue/js-delayed", "later", { AMQ_SCHEDULED_DELAY: "1500" });
    await session.send("/queue/js-delayed", "now");
    tell(Math.floor(performance.now() - began));
    session = await successor(session, { beats: 500 });
    const inbox = await session.subscribe("/queue/js-delayed");
    tell(await inbox.bodies(2));
    tell(Math.floor(performance.now() - began));
    await session.close();
  },

  async duplicate() {
    let session = await Session.open(addresses[0]);
    await session.send("/queue/js-once", "once", { _AMQ_DUPL_ID: "js" });
    session = await successor(session);
    await session.send("/queue/js-once", "once", { _AMQ_DUPL_ID: "js" });
    await session.send("/queue/js-once", "end");
    tell(await (await session.subscribe("/queue/js-once")).bodies(2));
    await session.close();
  },

  async priority() {
    let session = await Session.open(addresses[0]);
    for (const body of ["1 a", "9 b", "4 c", "9 d"])
      await session.send("/queue/js-levels", body, { priority: body[0] });
    session = await successor(session);
    tell(await (await session.subscribe("/queue/js-levels")).bodies(4));
    await session.close();
  },

  // Tells which subscription got which messages of each group.
  async group() {
    let session = await Session.open(addresses[0]);
    const queue = "/queue/js-groups";
    let inboxes = [];
    const subscribeTwice = async () => {
      inboxes = [];
      for (let count = 0; count < 2; count++)
        inboxes.push(await session.subscribe(queue, "client-individual"));
    };
    await subscribeTwice();
    for (let number = 0; number < 6; number++) {
      const name = "ab"[number % 2];
      await session.send(queue, `${name}${number}`, { JMSXGroupID: name });
    }
    if (moves) {
      session = await successor(session);
      await subscribeTwice();
    }
    const got = {};
    let count = 0;
    await new Promise((resolve, reject) => {
      const take = async (inbox, place) => {
        while (count < 6) {
          const message = await inbox.next();
          (got[place + message.body[0]] ??= []).push(message.body);
          count += 1;
          await session.ack(message);
        }
        resolve();
      };
      inboxes.forEach((inbox, place) => take(inbox, place).catch(reject));
    });
    tell(Object.values(got));
    await session.close();
  },

  async browse() {
    let session = await Session.open(addresses[0]);
    const queue = "/queue/js-browsed";
    for (const body of ["first", "second", "third"]) await session.send(queue, body);
    session = await successor(session);
    const browser = await session.subscribe(queue, "auto", { browser: "true" });
    tell(await browser.bodies(3));
    tell((await browser.next()).headers.browser);
    await browser.leave();
    tell(await (await session.subscribe(queue)).bodies(3));
    await session.close();
  },

  // Each version has an ACK and NACK of its own: the older ones name the message, not the delivery.
  async versions() {
    const all = ["1.0", "1.1", "1.2"];
    for (const version of all) {
      const session = await Session.open(addresses[0], { version });
      for (const body of ["one", "two"]) await session.send(`/queue/js-version-${version}`, body);
      await session.close();
    }
    if (moves) await awaitTakeover();
    for (const version of all) {
      const session = await Session.open(last, { version });
      const queue = `/queue/js-version-${version}`;
      const inbox = await session.subscribe(queue, "client-individual");
      await session.ack(await inbox.next());
      let second = await inbox.next();
      if (version !== "1.0") {
        await session.nack(second);
        second = await inbox.next();
      }
      await session.ack(second);
      await inbox.leave();
      await session.send(queue, "three");
      const again = await session.subscribe(queue);
      tell([session.version, (await again.next()).body]);
      await session.close();
    }
  },

  // Two connections share a last value, an order that is diverted, a topic by a wildcard and a question
  // with its answer.
  async destinations() {
    let session = await Session.open(addresses[0]);
    for (const price of ["1", "2"])
      await session.send("/queue/prices.js", price, { _AMQ_LVQ_NAME: "gold" });
    await session.send("/queue/orders.js", "order", { kind: "js" });
    session = await successor(session);
    const other = await Session.open(last);
    tell(await (await session.subscribe("/queue/prices.js")).bodies(1));
    const audit = await session.subscribe("/queue/audit", "auto", { selector: "kind = 'js'" });
    const copied = await audit.next();
    tell([copied.body, copied.headers._AMQ_ORIG_ADDRESS]);
    tell(await (await session.subscribe("/queue/orders.js")).bodies(1));
    const news = await session.subscribe("/topic/news.js.#", "auto", { "no-local": "true" });
    await session.send("/topic/news.js.eu", "own");
    await other.send("/topic/news.js.eu", "other");
    const heard = await news.next();
    tell([heard.body, heard.headers.destination]);
    const answers = await session.subscribe("/temp-queue/answers");
    const requests = await other.subscribe("/queue/requests.js");
    await session.send("/queue/requests.js", "question", { "reply-to": "/temp-queue/answers" });
    await other.send((await requests.next()).headers["reply-to"], "answer");
    tell(await answers.bodies(1));
    await Promise.all([session.close(), other.close()]);
  },

  // Tells which of the headers that were sent came.
  async passing() {
    let session = await Session.open(addresses[0]);
    const headers = {
      "correlation-id": "c-1",
      "reply-to": "/queue/answers.js",
      type: "order",
      priority: "7",
      expires: `${Date.now() + 3_600_000}`,
      persistent: "true",
      traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    };
    await session.send("/queue/js-passing", "order", { "content-type": "text/plain", ...headers });
    session = await successor(session);
    const message = await (await session.subscribe("/queue/js-passing")).next();
    const came = {};
    for (const [name, value] of Object.entries(headers))
      if (message.headers[name] === value) came[name] = "as it was sent";
    for (const name of ["content-type", "destination-type"]) came[name] = message.headers[name];
    tell(came);
    await session.close();
  },

  // Finds what nobody took in time where it was moved to.
  async expiry() {
    let session = await Session.open(addresses[0]);
    const queue = "/queue/js-expiring";
    await session.send(queue, "gone", { expires: `${Date.now() + 1_000}`, kind: "js" });
    await session.send(queue, "kept");
    session = await successor(session);
    const expired = await session.subscribe("/queue/ExpiryQueue", "auto", { selector: "kind = 'js'" });
    const message = await expired.next();
    tell([message.body, message.headers._AMQ_ORIG_QUEUE]);
    tell(await (await session.subscribe(queue)).bodies(1));
    await session.close();
  },

  // One message at a time: what came before the first is acknowledged, and what after it.
  async flow() {
    let session = await Session.open(addresses[0]);
    for (const body of ["first", "second"]) await session.send("/queue/js-flow", body);
    session = await successor(session);
    const inbox = await session.subscribe("/queue/js-flow", "client-individual", { "prefetch-count": "1" });
    const first = await inbox.next();
    await session.send("/queue/js-after", "whose receipt comes behind all that was on its way");
    tell([first.body, inbox.size]);
    await session.ack(first);
    const second = await inbox.next();
    tell(second.body);
    await session.ack(second);
    await session.close();
  },

  // Says by headers what a name is, and names one queue of an address.
  async routing() {
    let session = await Session.open(addresses[0]);
    await session.send("js-typed", "to one", { "destination-type": "ANYCAST" });
    session = await successor(session);
    tell(await (await session.subscribe("js-typed::js-typed")).bodies(1));
    const many = { "subscription-type": "MULTICAST" };
    const one = await session.subscribe("js-many", "auto", many);
    const two = await session.subscribe("js-many", "auto", many);
    await session.send("js-many", "to each", { "destination-type": "MULTICAST" });
    tell([...(await one.bodies(1)), ...(await two.bodies(1))]);
    const wrong = { "destination-type": "MULTICAST" };
    tell(await refusal(() => session.send("/queue/js-typed", "wrong", wrong)));
  },

  // Tells how long a rejected message stayed away.
  async redelivery() {
    let session = await Session.open(addresses[0]);
    await session.send("/queue/slow.js", "slow");
    let inbox = await session.subscribe("/queue/slow.js", "client-individual");
    let message = await inbox.next();
    const began = performance.now();
    await session.nack(message);
    if (moves) {
      session = await successor(session);
      inbox = await session.subscribe("/queue/slow.js", "client-individual");
    }
    message = await inbox.next();
    tell(Math.floor(performance.now() - began));
    tell(seen(message));
    await session.ack(message);
    await session.close();
  },

  // Sends one more than the ring has room for. What went for that may come once more from a successor.
  async ring() {
    let session = await Session.open(addresses[0]);
    for (const body of ["1", "2", "3"]) await session.send("/queue/newest.js", body);
    session = await successor(session);
    const inbox = await session.subscribe("/queue/newest.js");
    const came = await inbox.bodies(1);
    while (came.at(-1).body !== "3") came.push(...(await inbox.bodies(1)));
    tell(came);
    await session.close();
  },

  // Sends numbers to whichever node serves until each has its receipt, then takes them.
  async takeover() {
    const count = 60;
    let session = await serving();
    for (let number = 0; number < count; number++) {
      if (number === count / 2) await awaitTakeover();
      const id = { _AMQ_DUPL_ID: `js ${number}` };
      while ((await refusal(() => session.send("/queue/js-kept", `${number}`, id))) !== "") {
        await session.drop();
        session = await serving();
      }
    }
    const inbox = await session.subscribe("/queue/js-kept", "client-individual");
    const texts = [];
    while (texts.length < count) {
      const message = await inbox.next();
      texts.push(message.body);
      await session.ack(message);
    }
    tell(texts);
    await session.close();
  },
};

// Connects to whichever of the nodes answers.
async function serving() {
  const deadline = performance.now() + 120_000;
  while (performance.now() < deadline) {
    for (const address of addresses) {
      try {
        return await Session.open(address);
      } catch {
        await pause(50);
      }
    }
  }
  throw new Error(`none of ${addresses} serves`);
}

await scenarios[scenario]();
process.exit();
