// node failover.mjs OPTIONS: one client that knows both nodes of a pair, and goes to the other one
// when its own is gone. It says "sent N" for each message that is receipted; prints what it got.

import { Client } from "@stomp/stompjs";
import { WebSocket } from "ws";

const { urls, queue, authority, count } = JSON.parse(process.argv[2]);
const seen = { urls: [], bodies: [], closes: [] };
let tries = 0;
let sent = 0;

const client = new Client({
  reconnectDelay: 100,
  heartbeatIncoming: 60000, // less, and a machine that stands still ends the connection
  heartbeatOutgoing: 60000,
  webSocketFactory: () => {
    client.tried = urls[tries++ % urls.length];
    return new WebSocket(client.tried, ["v12.stomp"], { ca: authority });
  },
  onWebSocketError: () => {}, // the node is down, or waits: the other one is next
  onWebSocketClose: (event) => seen.closes.push(event.code),
  onConnect: () => {
    seen.urls.push(client.tried);
    client.subscribe(queue, take, { ack: "client-individual" });
    send();
  },
});

// The next message goes once this one is receipted; without a receipt it is sent again.
function send() {
  const number = sent;
  if (number === count) return;
  const receipt = `${tries}-${number}`;
  client.watchForReceipt(receipt, () => {
    sent = number + 1;
    console.log(`sent ${sent}`);
    setTimeout(() => client.connected && send(), 20);
  });
  client.publish({ destination: queue, body: String(number), headers: { receipt } });
}

function take(message) {
  message.ack();
  seen.bodies.push(Number(message.body));
  if (message.body === String(count - 1)) {
    client.deactivate().then(() => console.log(JSON.stringify(seen)));
  }
}

client.activate();
