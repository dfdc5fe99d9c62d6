// node destinations.mjs URL: two clients share a last value, a topic by a wildcard, a question with its
// answer and an order that is diverted; prints what came of it as JSON.

import { Client } from "@stomp/stompjs";
import { WebSocket } from "ws";

const url = process.argv[2];
const told = [];
let receipts = 0;

function connect() {
  return new Promise((resolve, reject) => {
    const client = new Client({
      reconnectDelay: 0,
      webSocketFactory: () => new WebSocket(url, ["v12.stomp"]),
      onConnect: () => resolve(client),
      onStompError: (frame) => reject(new Error(frame.headers.message)),
      onWebSocketError: (event) => reject(new Error(event.message)),
    });
    client.activate();
  });
}

function receipted(client, act) {
  return new Promise((resolve) => {
    const receipt = `r${receipts++}`;
    client.watchForReceipt(receipt, resolve);
    act(receipt);
  });
}

const send = (client, destination, body, headers = {}) =>
  receipted(client, (receipt) =>
    client.publish({ destination, body, headers: { ...headers, receipt } }),
  );

// Resolves, once it is subscribed, to what gives the first message.
async function subscribe(client, destination, headers = {}) {
  let first;
  const message = new Promise((resolve) => (first = resolve));
  await receipted(client, (receipt) =>
    client.subscribe(destination, first, { ...headers, receipt }),
  );
  return () => message;
}

const [client, other] = [await connect(), await connect()];
for (const price of ["1", "2"])
  await send(client, "/queue/prices.js", price, { _AMQ_LVQ_NAME: "gold" });
told.push((await (await subscribe(client, "/queue/prices.js"))()).body);

const news = await subscribe(client, "/topic/news.js.#", { "no-local": "true" });
await send(client, "/topic/news.js.eu", "own");
await send(other, "/topic/news.js.eu", "other");
const heard = await news();
told.push(heard.body, heard.headers.destination);

const answer = await subscribe(client, "/temp-queue/answers");
const request = await subscribe(other, "/queue/requests.js");
await send(client, "/queue/requests.js", "question", { "reply-to": "/temp-queue/answers" });
await send(other, (await request()).headers["reply-to"], "answer");
told.push((await answer()).body);

await send(client, "/queue/orders.js", "order", { kind: "js" });
const copied = await (await subscribe(client, "/queue/audit", { selector: "kind = 'js'" }))();
told.push(copied.body, copied.headers._AMQ_ORIG_ADDRESS);
told.push((await (await subscribe(client, "/queue/orders.js"))()).body);

await Promise.all([client.deactivate(), other.deactivate()]);
console.log(JSON.stringify(told));
