// What one client does, in Node and in a page alike; returns what it saw, for the test to judge.

const BYTES = Uint8Array.from({ length: 256 }, (_, index) => index);

export function scenario(Client, { url, queue, sizes, client: configuration }, ready) {
  const seen = { messages: [], errors: [], closes: [] };
  return new Promise((resolve) => {
    const client = new Client({
      reconnectDelay: 0,
      heartbeatIncoming: 60000, // less, and a machine that stands still ends the connection
      heartbeatOutgoing: 60000,
      brokerURL: url,
      ...configuration,
      onStompError: (frame) => seen.errors.push(frame.headers.message),
      onWebSocketError: (event) => seen.errors.push(String(event.message ?? event.type)),
      onWebSocketClose: (event) => {
        seen.closes.push(event.code);
        client.deactivate().then(() => resolve(seen));
      },
      onConnect: (frame) => {
        seen.version = frame.headers.version;
        seen.heartbeat = frame.headers["heart-beat"];
        seen.subprotocol = client.webSocket.protocol;
        seen.extensions = client.webSocket.extensions;
        client.subscribe(queue, take, { ack: "client-individual" });
        publish("bytes", { binaryBody: BYTES });
        for (const size of sizes) publish("text", { body: "ü".repeat(size) });
      },
    });
    const publish = (kind, body) =>
      client.publish({ destination: queue, headers: { kind }, ...body });
    const take = (message) => {
      const body = message.binaryBody;
      const whole =
        message.headers.kind === "bytes"
          ? body.every((one, index) => one === BYTES[index])
          : message.body === "ü".repeat(body.length / 2);
      seen.messages.push([message.headers.kind, body.length, whole]);
      const isLast = seen.messages.length === sizes.length + 1;
      if (isLast) client.watchForReceipt("acknowledged", () => ready(client));
      message.ack(isLast ? { receipt: "acknowledged" } : {});
    };
    client.activate();
  });
}
