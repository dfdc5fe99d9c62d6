// node node.mjs OPTIONS: one client in Node; prints what it saw as JSON.
// With "stays" it says when it is done, and waits for the broker to close.

import { Client } from "@stomp/stompjs";
import { WebSocket } from "ws";
import { scenario } from "./scenario.js";

const { stays, authority, ...options } = JSON.parse(process.argv[2]);
options.client = {
  ...options.client,
  webSocketFactory: () =>
    new WebSocket(options.url, ["v10.stomp", "v11.stomp", "v12.stomp"], { ca: authority }),
};
const ready = (client) => (stays ? console.log("ready") : client.deactivate());
console.log(JSON.stringify(await scenario(Client, options, ready)));
