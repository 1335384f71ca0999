// The server of the conformance suite on version 2 of TypeScript's SDK, which speaks both eras.
//
//     fixture2.mjs stdio      or      fixture2.mjs http PORT [sessions]
//
// Over HTTP legacy clients have no session, as is usual with this SDK, unless `sessions` is
// given. It says on stderr where it listens, and ends with its stdin. Some tools ask in the
// middle of a call, which this SDK does for legacy clients only; those in `rounds.mjs` return
// what they want to know, which it does for both. `fixture1.mjs` and `fixture.py` offer the
// same on other SDKs.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import * as offered from "./contents.mjs";
import { addRounds } from "./rounds.mjs";

// The SDK is installed elsewhere: where the environment says.
const require = createRequire(`${process.env.SDK_FOLDER}/`);
const sdk = require("@modelcontextprotocol/server");
const { serveStdio } = require("@modelcontextprotocol/server/stdio");
const { getRequestListener } = require("@hono/node-server");
const { z } = require("zod");

const { say, pause } = offered;
const [, , way, , legacy] = process.argv;
const states = sdk.createRequestStateCodec({ key: "a secret of at least thirty-two bytes" });

/** Tells modern clients of a change: over stdio by the only server, over HTTP by the handler. */
let tellChange;

/** Asks the client's user, and tells what became of that. */
async function elicit(tool, message, ctx) {
  const params = { mode: "form", message, requestedSchema: offered.FORMS[tool] };
  const { action, content } = await ctx.mcpReq.elicitInput(params);
  return say(`User response: action=${action}, content=${JSON.stringify(content ?? {})}`);
}

async function log(_arguments, ctx) {
  for (const data of offered.LOGGED) {
    await ctx.mcpReq.log("info", data);
    await pause(50);
  }
  return say("Tool with logging executed successfully");
}

async function progress(_arguments, ctx) {
  const progressToken = ctx.mcpReq._meta?.progressToken;
  for (const progress of offered.PROGRESS) {
    const params = { progressToken, progress, total: 100, message: `at ${progress}` };
    if (progressToken !== undefined)
      await ctx.mcpReq.notify({ method: "notifications/progress", params });
    await pause(50);
  }
  return say("Tool with progress executed successfully");
}

async function reconnect(_arguments, ctx) {
  await pause(50);
  ctx.http?.closeSSE?.();
  await pause(offered.AWAY_MS);
  return offered.RECONNECTED;
}

function addTools(server) {
  const add = (name, description, inputSchema, action) =>
    server.registerTool(name, { description, inputSchema }, action);
  const none = z.object({});
  for (const [name, [description, result]] of Object.entries(offered.PLAIN_TOOLS))
    add(name, description, none, () => result);
  add("test_tool_with_logging", "Logs", none, log);
  add("test_tool_with_progress", "Reports progress", none, progress);
  add("test_reconnection", "Closes the client's stream", none, reconnect);
  const prompt = z.object({ prompt: z.string() });
  add("test_sampling", "Asks the client's model", prompt, async ({ prompt }, ctx) => {
    const { content } = await ctx.mcpReq.requestSampling(offered.thought(prompt));
    return say(`LLM response: ${content.text}`);
  });
  const message = z.object({ message: z.string() });
  add("test_elicitation", "Asks the user", message, ({ message }, ctx) =>
    elicit("test_elicitation", message, ctx),
  );
  for (const name of ["test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"])
    add(name, "Asks the user", none, (_, ctx) => elicit(name, "Please fill in.", ctx));
  const schema = sdk.fromJsonSchema(offered.SCHEMA_2020_12);
  add("json_schema_2020_12_tool", "Tool with JSON Schema 2020-12 features", schema, (given) =>
    say(JSON.stringify(given)),
  );
  const mirrored = sdk.fromJsonSchema(offered.IN_HEADERS);
  add("in_headers", "Has its arguments in headers too", mirrored, (given) =>
    say(JSON.stringify(given)),
  );
  add("test_logging_tool", "Logs if that is wanted", none, async (_, ctx) => {
    await ctx.mcpReq.log("info", "from the tool that logs");
    return say("logged, if that was wanted");
  });
  for (const kind of ["tool", "prompt"])
    add(`test_trigger_${kind}_change`, `Tells that the ${kind}s have changed`, none, () => {
      tellChange(server, kind);
      return say("told");
    });
}

function addResources(server) {
  for (const [uri, [name, mimeType, rest]] of Object.entries(offered.RESOURCES))
    server.registerResource(name, uri, { mimeType }, () => offered.contents(uri, mimeType, rest));
  const template = new sdk.ResourceTemplate(offered.TEMPLATE, { list: undefined });
  server.registerResource("Template", template, {}, (uri, { id }) =>
    offered.fromTemplate(uri.href, id),
  );
  // The high-level server has no subscriptions of the legacy era.
  server.server.registerCapabilities({ resources: { subscribe: true } });
  server.server.setRequestHandler("resources/subscribe", () => ({}));
  server.server.setRequestHandler("resources/unsubscribe", () => ({}));
}

function addPrompts(server) {
  const argument = () => sdk.completable(z.string(), offered.complete);
  for (const [name, [description, names, action]] of Object.entries(offered.PROMPTS)) {
    const argsSchema = z.object(Object.fromEntries(names.map((name) => [name, argument()])));
    const about = names.length ? { description, argsSchema } : { description };
    server.registerPrompt(name, about, names.length ? action : () => action({}));
  }
}

function makeServer() {
  const server = new sdk.McpServer(
    { name: "fixture2.mjs", version: "1" },
    { capabilities: { logging: {} }, requestState: { verify: states.verify } },
  );
  addTools(server);
  addRounds(server, sdk, states);
  addResources(server);
  addPrompts(server);
  return server;
}

const sessions = new Map();

/** Hands a legacy request to its session, or to a new one if it begins one. */
async function inSession(request) {
  const id = request.headers.get("mcp-session-id");
  if (id) {
    const gone = { code: -32001, message: "Session not found" };
    const answer = () => Response.json({ jsonrpc: "2.0", id: null, error: gone }, { status: 404 });
    return sessions.get(id)?.handleRequest(request) ?? answer();
  }
  const transport = new sdk.WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new offered.EventStore(),
    retryInterval: offered.RETRY_MS,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await makeServer().connect(transport);
  return transport.handleRequest(request);
}

if (way === "stdio") {
  tellChange = (server, kind) =>
    kind === "tool" ? server.sendToolListChanged() : server.sendPromptListChanged();
  serveStdio(makeServer);
} else {
  const hasSessions = legacy === "sessions";
  const handler = sdk.createMcpHandler(makeServer, { legacy: hasSessions ? "reject" : "stateless" });
  tellChange = (_server, kind) =>
    kind === "tool" ? handler.notify.toolsChanged() : handler.notify.promptsChanged();
  const serve = async (request) => {
    const refused =
      sdk.hostHeaderValidationResponse(request, sdk.localhostAllowedHostnames()) ??
      sdk.originValidationResponse(request, sdk.localhostAllowedOrigins());
    if (refused) return refused;
    const isLegacy = hasSessions && (await sdk.isLegacyRequest(request.clone()));
    return isLegacy ? inSession(request) : handler.fetch(request);
  };
  offered.announce(createServer(getRequestListener(serve)));
}
