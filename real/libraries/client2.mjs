// TypeScript's `@modelcontextprotocol/client` 2.x, which speaks both eras. `features.mjs` has
// the checks. `MODE` in the environment is the SDK's own, or `default` for what it does unasked.

import { createRequire } from "node:module";

import { handlers, run, transport } from "./features.mjs";

// The SDK is installed elsewhere: where the environment says.
const require = createRequire(`${process.env.SDK_FOLDER}/`);
const sdk = require("@modelcontextprotocol/client");
const { StdioClientTransport: Stdio } = require("@modelcontextprotocol/client/stdio");
const { StreamableHTTPClientTransport: Http, SSEClientTransport: Sse } = sdk;

const LOG_LEVEL = "io.modelcontextprotocol/logLevel";

const mode = process.env.MODE ?? "default";
const client = new sdk.Client(
  { name: "client2.mjs", version: "1" },
  {
    capabilities: { sampling: {}, elicitation: {}, roots: {} },
    ...(mode === "default" ? {} : { versionNegotiation: { mode } }),
  },
);
client.setRequestHandler("sampling/createMessage", handlers.sample);
client.setRequestHandler("elicitation/create", handlers.elicit);
client.setRequestHandler("roots/list", handlers.listRoots);
client.setNotificationHandler("notifications/message", handlers.log);
client.setNotificationHandler("notifications/resources/updated", handlers.update);

await client.connect(transport({ Stdio, Http, Sse }));
const isModern = client.getProtocolEra() === "modern";
await run({
  tools: async () => (await client.listTools()).tools,
  call: (name, args, how, meta) =>
    client.callTool({ name, arguments: args, ...(meta && { _meta: meta }) }, how),
  complete: (params) => client.complete(params),
  resources: async () => (await client.listResources()).resources,
  read: (uri) => client.readResource({ uri }),
  async watch(uri) {
    if (isModern) {
      const listening = await client.listen({ resourceSubscriptions: [uri] });
      return () => listening.close();
    }
    await client.subscribeResource({ uri });
    return () => client.unsubscribeResource({ uri });
  },
  // A request of the modern era names the level itself.
  async setLevel(level) {
    if (isModern) return { [LOG_LEVEL]: level };
    await client.setLoggingLevel(level);
  },
  prompts: async () => (await client.listPrompts()).prompts,
  prompt: (params) => client.getPrompt(params),
});
await client.close();
