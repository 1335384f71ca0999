// TypeScript's `@modelcontextprotocol/sdk` 1.x. `features.mjs` has the checks.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

import { handlers, run, transport } from "./features.mjs";

// The SDK is installed elsewhere: where the environment says.
const require = createRequire(`${process.env.SDK_FOLDER}/`);
const sdk = (part) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${part}`)));
const { Client } = await sdk("client/index.js");
const { StdioClientTransport: Stdio } = await sdk("client/stdio.js");
const { StreamableHTTPClientTransport: Http } = await sdk("client/streamableHttp.js");
const { SSEClientTransport: Sse } = await sdk("client/sse.js");
const types = await sdk("types.js");

const capabilities = { sampling: {}, elicitation: {}, roots: {} };
const client = new Client({ name: "sdk1.mjs", version: "1" }, { capabilities });
client.setRequestHandler(types.CreateMessageRequestSchema, handlers.sample);
client.setRequestHandler(types.ElicitRequestSchema, handlers.elicit);
client.setRequestHandler(types.ListRootsRequestSchema, handlers.listRoots);
client.setNotificationHandler(types.LoggingMessageNotificationSchema, handlers.log);
client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, handlers.update);

await client.connect(transport({ Stdio, Http, Sse }));
await run({
  tools: async () => (await client.listTools()).tools,
  call: (name, args, how) =>
    client.callTool({ name, arguments: args }, types.CallToolResultSchema, how),
  complete: (params) => client.complete(params),
  resources: async () => (await client.listResources()).resources,
  read: (uri) => client.readResource({ uri }),
  async watch(uri) {
    await client.subscribeResource({ uri });
    return () => client.unsubscribeResource({ uri });
  },
  setLevel: async (level) => void (await client.setLoggingLevel(level)),
  prompts: async () => (await client.listPrompts()).prompts,
  prompt: (params) => client.getPrompt(params),
});
await client.close();
