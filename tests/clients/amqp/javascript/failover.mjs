// node failover.mjs OPTIONS: one client that sends numbered messages and receives them. It is told one
// node's address; of the others it learns by the failover-server-list of the broker's open. It says
// "accepted N" for each message that is, and prints what it saw at its end.
// With URLs it goes by WebSocket, and to those: the list names ports.

import rhea from "rhea";
import { WebSocket } from "ws";

const { port, queue, count, urls, authority } = JSON.parse(process.argv[2]);
const WINDOW = 20;
const seen = { ports: [], subprotocols: [], listed: [], bodies: [] };
const nodes = urls ?? [port];
const asked = new Map(); // by delivery id: the number of each message that is not accepted yet
let tries = 0;
let sent = 0;
let accepted = 0;
let again = [];
let tried;

class NotedWebSocket extends WebSocket {
  constructor(...all) {
    super(...all);
    this.on("open", () => seen.subprotocols.push(this.protocol));
  }
}
const webSocket = rhea.websocket_connect(NotedWebSocket);

const connection = rhea.connect({
  initial_reconnect_delay: 100,
  max_reconnect_delay: 300,
  idle_time_out: 60000,
  connection_details: () => {
    tried = nodes[tries++ % nodes.length];
    return urls ? webSocket(tried, ["amqp"], { ca: authority })() : { host: "localhost", port: tried };
  },
});
const sender = connection.open_sender({ target: { address: queue, capabilities: ["queue"] } });
connection.open_receiver({
  source: { address: queue, capabilities: ["queue"] },
  credit_window: 50,
  autoaccept: false,
});

rhea.on("connection_open", () => {
  seen.ports.push(urls ? Number(new URL(tried).port) : tried);
  const listed = connection.properties["failover-server-list"] ?? [];
  seen.listed = listed.map((one) => Number(one.port));
  if (!urls) nodes.push(...seen.listed.filter((one) => !nodes.includes(one)));
});

// What was not accepted when the connection was lost is sent again, with the same duplicate id.
rhea.on("disconnected", () => {
  again = [...again, ...asked.values()].sort((a, b) => a - b);
  asked.clear();
});

rhea.on("sendable", send);

function send() {
  while (sender.sendable() && asked.size < WINDOW && (again.length || sent < count)) {
    const number = again.length ? again.shift() : sent++;
    const delivery = sender.send({
      durable: true,
      body: String(number),
      application_properties: { _AMQ_DUPL_ID: `${queue}-${number}` },
    });
    asked.set(delivery.id, number);
  }
}

rhea.on("accepted", ({ delivery }) => {
  if (!asked.delete(delivery.id)) return;
  accepted += 1;
  console.log(`accepted ${accepted}`);
  send();
  end();
});

rhea.on("message", ({ message, delivery }) => {
  delivery.accept();
  seen.bodies.push(Number(message.body));
  end();
});

function end() {
  if (accepted >= count && new Set(seen.bodies).size === count) connection.close();
}

rhea.on("connection_close", () => console.log(JSON.stringify(seen)));
