// A server with TypeScript's SDK that reads nothing for a while after its start.
//
//     slow.mjs ERA FILE [noisy]
//
// FILE says for how many seconds. ERA is `both`, `modern` (it refuses `initialize`) or
// `legacy` (it knows nothing else). A noisy one writes a line to stdout that is no message
// before it reads, and another one afterwards. Its only tool says what it is given. `slow.py`
// is the same in Python.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// The SDK is installed elsewhere: where the environment says.
const require = createRequire(`${process.env.SDK_FOLDER}/`);
const { McpServer } = require("@modelcontextprotocol/server");
const { serveStdio, StdioServerTransport } = require("@modelcontextprotocol/server/stdio");
const { z } = require("zod");

const [era, file, noisy] = process.argv.slice(2);
const makeNoise = (text) => noisy && process.stdout.write(`${text}\n`);
const seconds = Number(readFileSync(file, "utf8"));

function makeServer() {
  const server = new McpServer({ name: "slow.mjs", version: "1" });
  server.registerTool("say", { inputSchema: z.object({ text: z.string() }) }, ({ text }) => ({
    content: [{ type: "text", text: `said: ${text}` }],
  }));
  return server;
}

makeNoise("Starting {");
await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
if (era === "legacy") {
  await makeServer().connect(new StdioServerTransport());
} else {
  serveStdio(makeServer, { legacy: era === "both" ? "serve" : "reject" });
}
makeNoise("[ready]");
