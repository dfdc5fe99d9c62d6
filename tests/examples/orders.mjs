// node orders.mjs COUNT URL...: what index.html does, in Node; it prints what the page shows.

import { WebSocket } from "ws";
import { Orders } from "./orders.js";

const [, , count, ...nodes] = process.argv;
const open = (url) => new WebSocket(url, ["v12.stomp"]);
await new Orders(nodes, console.log, { open }).sendMany(Number(count));
