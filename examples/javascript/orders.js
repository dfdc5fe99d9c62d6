// Sends and takes orders by STOMP over WebSocket, through whichever node of a pair serves.
// It knows no page: index.html shows what it tells.

import { Client } from "@stomp/stompjs";

const QUEUE = "/queue/orders";
const PAUSE_MS = 20; // between two orders, to leave time for killing a node

export class Orders {
  #client;
  #tell;
  #tries = 0;
  #waiting = []; // orders without a RECEIPT, oldest first: { order, id, stored }
  #done = new Set(); // a real consumer keeps it where it keeps what comes of its work

  // nodes: URLs of both nodes. tell: called with a line for each thing that happens.
  constructor(nodes, tell, { login, passcode, open = (url) => new WebSocket(url, ["v12.stomp"]) } = {}) {
    this.#tell = tell;
    this.#client = new Client({
      connectHeaders: login ? { login, passcode } : {},
      // The client asks for a socket each time it connects: it gets the next node's.
      webSocketFactory: () => open(nodes[this.#tries++ % nodes.length]),
      reconnectDelay: 500,
      heartbeatIncoming: 10000, // else a host that is lost is noticed late
      heartbeatOutgoing: 10000,
      onConnect: () => this.#connected(),
      onStompError: (frame) => tell(`the broker refused: ${frame.headers.message}`),
      onWebSocketClose: () => tell("no connection"),
      onWebSocketError: () => {}, // the node is down, or waits: the other one is next
    });
    this.#client.activate();
  }

  #connected() {
    this.#tell("connected");
    this.#client.subscribe(QUEUE, (message) => this.#take(message), { ack: "client-individual" });
    // What had no RECEIPT is sent again; by its duplicate id the broker stores it once.
    for (const one of this.#waiting) this.#publish(one);
  }

  // Resolves once the broker has stored the order, whatever happens to a node meanwhile.
  send(order) {
    return new Promise((stored) => {
      const one = { order, id: crypto.randomUUID(), stored };
      this.#waiting.push(one);
      if (this.#client.connected) this.#publish(one);
    });
  }

  #publish(one) {
    this.#client.watchForReceipt(one.id, () => {
      this.#waiting.splice(this.#waiting.indexOf(one), 1);
      this.#tell(`stored ${one.order}`);
      one.stored();
    });
    const headers = { receipt: one.id, _AMQ_DUPL_ID: one.id };
    this.#client.publish({ destination: QUEUE, body: one.order, headers });
  }

  async sendMany(count) {
    for (let number = 0; number < count; number++) {
      await this.send(`order ${number}`);
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  #take(message) {
    const order = message.body;
    const again = this.#done.has(order);
    this.#done.add(order);
    this.#tell(`${again ? "again" : "got"} ${order}`); // the work on the order goes here
    message.ack();
  }

  close() {
    return this.#client.deactivate();
  }
}
