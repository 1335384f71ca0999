// A server with version 1 of TypeScript's SDK that reads nothing for a while after its start.
//
//     slow1.mjs legacy FILE
//
// FILE says for how many seconds. `slow.mjs` is the same with version 2.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// The SDK is installed elsewhere: where the environment says.
const require = createRequire(`${process.env.SDK_FOLDER}/`);
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
const { z } = require("zod");

const seconds = Number(readFileSync(process.argv[3], "utf8"));
const server = new McpServer({ name: "slow1.mjs", version: "1" });
server.registerTool("say", { inputSchema: { text: z.string() } }, ({ text }) => ({
  content: [{ type: "text", text: `said: ${text}` }],
}));
await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
await server.connect(new StdioServerTransport());
