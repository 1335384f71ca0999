// The server of the conformance suite on version 1 of TypeScript's SDK, which speaks the
// legacy era only.
//
//     fixture1.mjs stdio      or      fixture1.mjs http PORT
//
// Over HTTP it has sessions, and says on stderr where it listens. It ends with its stdin.
// `fixture2.mjs` and `fixture.py` offer the same on other SDKs.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import * as offered from "./contents.mjs";

// The SDK is installed elsewhere: where the environment says.
const require = createRequire(`${process.env.SDK_FOLDER}/`);
const sdk = (path) => require(`@modelcontextprotocol/sdk/${path}`);
const { Server } = sdk("server/index.js");
const { StdioServerTransport } = sdk("server/stdio.js");
const { StreamableHTTPServerTransport } = sdk("server/streamableHttp.js");
const { createMcpExpressApp } = sdk("server/express.js");
const types = sdk("types.js");

const { say, pause } = offered;
const NO_ARGUMENTS = { type: "object", properties: {} };
const oneWord = (name) => ({
  type: "object",
  properties: { [name]: { type: "string" } },
  required: [name],
});

/** Asks the client's user, and tells what became of that. */
async function elicit(tool, message, extra) {
  const params = { mode: "form", message, requestedSchema: offered.FORMS[tool] };
  const asked = { method: "elicitation/create", params };
  const { action, content } = await extra.sendRequest(asked, types.ElicitResultSchema);
  return say(`User response: action=${action}, content=${JSON.stringify(content ?? {})}`);
}

/** The tools that do more than answer: description, schema and action of each. */
const ACTIVE_TOOLS = {
  test_tool_with_logging: ["Logs", NO_ARGUMENTS, async (_arguments, extra) => {
    for (const data of offered.LOGGED) {
      const params = { level: "info", data };
      await extra.sendNotification({ method: "notifications/message", params });
      await pause(50);
    }
    return say("Tool with logging executed successfully");
  }],
  test_tool_with_progress: ["Reports progress", NO_ARGUMENTS, async (_arguments, extra) => {
    const progressToken = extra._meta?.progressToken;
    for (const progress of offered.PROGRESS) {
      const params = { progressToken, progress, total: 100, message: `at ${progress}` };
      if (progressToken !== undefined)
        await extra.sendNotification({ method: "notifications/progress", params });
      await pause(50);
    }
    return say("Tool with progress executed successfully");
  }],
  test_sampling: ["Asks the client's model", oneWord("prompt"), async ({ prompt }, extra) => {
    const asked = { method: "sampling/createMessage", params: offered.thought(prompt) };
    const { content } = await extra.sendRequest(asked, types.CreateMessageResultSchema);
    return say(`LLM response: ${content.text}`);
  }],
  test_elicitation: ["Asks the user", oneWord("message"), ({ message }, extra) =>
    elicit("test_elicitation", message, extra)],
  test_elicitation_sep1034_defaults: ["Asks the user, with defaults", NO_ARGUMENTS, (_, extra) =>
    elicit("test_elicitation_sep1034_defaults", "Please fill in.", extra)],
  test_elicitation_sep1330_enums: ["Lets the user choose", NO_ARGUMENTS, (_, extra) =>
    elicit("test_elicitation_sep1330_enums", "Please choose.", extra)],
  test_reconnection: ["Closes the client's stream", NO_ARGUMENTS, async (_arguments, extra) => {
    await pause(50);
    extra.closeSSEStream?.();
    await pause(offered.AWAY_MS);
    return offered.RECONNECTED;
  }],
  json_schema_2020_12_tool: [
    "Tool with JSON Schema 2020-12 features",
    offered.SCHEMA_2020_12,
    async (given) => say(JSON.stringify(given)),
  ],
};

function listTools() {
  const plain = Object.entries(offered.PLAIN_TOOLS).map(([name, [description]]) => {
    return { name, description, inputSchema: NO_ARGUMENTS };
  });
  const active = Object.entries(ACTIVE_TOOLS).map(([name, [description, inputSchema]]) => {
    return { name, description, inputSchema };
  });
  return { tools: [...plain, ...active] };
}

async function callTool({ params: { name, arguments: given = {} } }, extra) {
  if (offered.PLAIN_TOOLS[name]) return offered.PLAIN_TOOLS[name][1];
  if (ACTIVE_TOOLS[name]) return ACTIVE_TOOLS[name][2](given, extra);
  throw new types.McpError(types.ErrorCode.InvalidParams, `no tool \`${name}\``);
}

function readResource({ params: { uri } }) {
  const id = uri.match(/^test:\/\/template\/(.+)\/data$/)?.[1];
  if (id) return offered.fromTemplate(uri, id);
  const known = offered.RESOURCES[uri];
  if (known) return offered.contents(uri, known[1], known[2]);
  throw new types.McpError(-32002, "Resource not found", { uri });
}

function getPrompt({ params: { name, arguments: given = {} } }) {
  const known = offered.PROMPTS[name];
  if (!known) throw new types.McpError(types.ErrorCode.InvalidParams, `no prompt \`${name}\``);
  return known[2](given);
}

function makeServer() {
  const listChanged = true;
  const capabilities = {
    tools: { listChanged },
    prompts: { listChanged },
    resources: { subscribe: true, listChanged },
    logging: {},
    completions: {},
  };
  const server = new Server({ name: "fixture1.mjs", version: "1" }, { capabilities });
  const answer = (schema, handler) => server.setRequestHandler(schema, handler);
  answer(types.ListToolsRequestSchema, listTools);
  answer(types.CallToolRequestSchema, callTool);
  answer(types.ListResourcesRequestSchema, () => ({
    resources: Object.entries(offered.RESOURCES).map(([uri, [name, mimeType]]) => {
      return { uri, name, mimeType };
    }),
  }));
  answer(types.ListResourceTemplatesRequestSchema, () => ({
    resourceTemplates: [{ uriTemplate: offered.TEMPLATE, name: "Template" }],
  }));
  answer(types.ReadResourceRequestSchema, readResource);
  answer(types.SubscribeRequestSchema, () => ({}));
  answer(types.UnsubscribeRequestSchema, () => ({}));
  answer(types.ListPromptsRequestSchema, () => ({
    prompts: Object.entries(offered.PROMPTS).map(([name, [description, names]]) => {
      return { name, description, arguments: names.map((name) => ({ name, required: true })) };
    }),
  }));
  answer(types.GetPromptRequestSchema, getPrompt);
  answer(types.CompleteRequestSchema, ({ params }) => {
    const values = offered.complete(params.argument.value);
    return { completion: { values, total: values.length, hasMore: false } };
  });
  return server;
}

const sessions = new Map();

/** Hands a request to its session, or to a new one if it begins one. */
async function handle(request, response) {
  const id = request.headers["mcp-session-id"];
  const isFirst = !id && types.isInitializeRequest(request.body);
  if (!isFirst && !sessions.has(id)) {
    const error = { code: -32001, message: "Session not found" };
    return response.status(id ? 404 : 400).json({ jsonrpc: "2.0", id: null, error });
  }
  let transport = sessions.get(id);
  if (isFirst) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      eventStore: new offered.EventStore(),
      retryInterval: offered.RETRY_MS,
      onsessioninitialized: (id) => sessions.set(id, transport),
      onsessionclosed: (id) => sessions.delete(id),
    });
    await makeServer().connect(transport);
  }
  return transport.handleRequest(request, response, request.body);
}

if (process.argv[2] === "stdio") {
  await makeServer().connect(new StdioServerTransport());
} else {
  const app = createMcpExpressApp();
  app.all("/mcp", handle);
  offered.announce(createServer(app));
}
