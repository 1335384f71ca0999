// A client of xy with TypeScript's SDK, as a person would write one.
//
//     client.mjs stdio COMMAND ARGS…      or      client.mjs http URL TOKEN
//
// It connects, then does what each line of its stdin asks for, and answers with one line of
// JSON: what it saw. It judges nothing, so that what must be so stands in one place, the
// test that runs it. `client.py` is the same in Python and answers the same.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

// The SDK is installed elsewhere: where the environment says.
const require = createRequire(`${process.env.SDK_FOLDER}/`);
const sdk = (part) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${part}`)));
const { Client } = await sdk("client/index.js");
const { StdioClientTransport } = await sdk("client/stdio.js");
const { StreamableHTTPClientTransport } = await sdk("client/streamableHttp.js");
const {
  CallToolResultSchema,
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  McpError,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} = await sdk("types.js");

const WATCHED = "xy://everything/demo://resource/dynamic/text/1";
const LONG = "everything__trigger-long-running-operation";

// What is looked for among the tools of other servers: the words, the tool, its arguments.
const FRIENDS = [
  ["what time is it in another timezone", "time__get_current_time", { timezone: "UTC" }],
  ["read the whole knowledge graph", "memory__read_graph", {}],
];

const capabilities = { sampling: {}, elicitation: {} };
const client = new Client({ name: "client.mjs", version: "1" }, { capabilities });

let name; // Of this client, among several.

/** What a model would do that a server asks for. */
client.setRequestHandler(CreateMessageRequestSchema, () => {
  const content = { type: "text", text: `${name} has thought` };
  return { role: "assistant", content, model: "none" };
});

/** Fills in what a server needs of a person. */
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  const filled = params.requestedSchema.required.map((field) => [field, `${name} says`]);
  return { action: "accept", content: Object.fromEntries(filled) };
});

/** Hears of the next resource that has changed. */
let hearUpdated = () => {};
client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => {
  hearUpdated(params.uri);
});

let changed = 0;
client.setNotificationHandler(ToolListChangedNotificationSchema, () => {
  changed += 1;
});

/** The first text of what a tool answers. */
async function call(tool, args, how) {
  const answer = await client.callTool({ name: tool, arguments: args }, CallToolResultSchema, how);
  const { text } = answer.content[0];
  return answer.isError ? `error: ${text}` : text;
}

const callJson = async (tool, args) => JSON.parse(await call(tool, args));

/** What became of something that may be refused. */
async function tried(something) {
  try {
    return await something;
  } catch (problem) {
    if (!(problem instanceof McpError)) throw problem;
    return { code: problem.code, message: problem.message };
  }
}

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

const codeOf = ({ code }) => ({ code });

/** All entries of a list. */
async function pages(ask, of) {
  const found = [];
  let cursor;
  do {
    const page = await ask(cursor ? { cursor } : undefined);
    found.push(...page[of]);
    cursor = page.nextCursor;
  } while (cursor);
  return found;
}

async function lists() {
  const all = async (method, of, field) =>
    (await pages((params) => client[method](params), of)).map((it) => it[field]);
  return {
    tools: await all("listTools", "tools", "name"),
    prompts: await all("listPrompts", "prompts", "name"),
    resources: await all("listResources", "resources", "uri"),
    templates: await all("listResourceTemplates", "resourceTemplates", "uriTemplate"),
  };
}

/** Tools of every server but one. */
async function calls({ folder, repository }) {
  const path = `${folder}/${name}.txt`;
  const text = `written by ${name}`;
  return {
    echo: await call("everything__echo", { message: text }),
    sum: await call("everything__get-sum", { a: 2, b: 40 }),
    written: await call("files__write_file", { path, content: text }),
    read: await call("files__read_text_file", { path }),
    time: await callJson("time__get_current_time", { timezone: "UTC" }),
    git: await call("git__git_status", { repo_path: repository }),
  };
}

/** A prompt, two resources, the end of a word. */
async function texts() {
  const weather = { city: "Bern", state: "BE" };
  const prompt = await client.getPrompt({ name: "everything__args-prompt", arguments: weather });
  const dynamic = await client.readResource({ uri: WATCHED });
  const document = "xy://everything/demo://resource/static/document/features.md";
  const fixed = await client.readResource({ uri: document });
  const word = await client.complete({
    ref: { type: "ref/prompt", name: "everything__completable-prompt" },
    argument: { name: "department", value: "E" },
  });
  const template = "xy://everything/demo://resource/dynamic/text/{resourceId}";
  const number = await client.complete({
    ref: { type: "ref/resource", uri: template },
    argument: { name: "resourceId", value: "7" },
  });
  return {
    prompt: prompt.messages[0].content.text,
    dynamic: dynamic.contents[0].text,
    static: fixed.contents[0].text,
    word: word.completion.values,
    number: number.completion.values,
  };
}

/** A call that tells how far it is, and one that is given up. */
async function long() {
  const progress = [];
  const onprogress = ({ progress: done, total }) => progress.push([done, total]);
  const told = await call(LONG, { duration: 1, steps: 4 }, { onprogress });
  const gaveUp = await tried(call(LONG, { duration: 30 }, { timeout: 300 }));
  return { long: told, progress, gave_up: codeOf(gaveUp) };
}

/** Twenty calls at once, the odd ones to another server. */
async function crowd() {
  const one = async (number) => {
    if (number % 2) {
      const answer = await callJson("time__get_current_time", { timezone: "Asia/Tokyo" });
      return answer.timezone;
    }
    return call("everything__get-sum", { a: number, b: 1000 });
  };
  return { crowd: await Promise.all(Array.from({ length: 20 }, (_, number) => one(number))) };
}

/** What cannot be had. */
async function refusals() {
  return {
    bad_arguments: await call("everything__get-sum", { a: "x" }),
    unknown_tool: codeOf(await tried(call("everything__no-such-tool", {}))),
    unknown_resource: codeOf(await tried(client.readResource({ uri: "no://where" }))),
  };
}

const deeds = {
  /** Everything, once. */
  async tour(ask) {
    await client.ping();
    await client.setLoggingLevel("warning");
    return {
      version: transport.protocolVersion ?? agreed,
      server: client.getServerVersion().name,
      ...(await lists()),
      ...(await calls(ask)),
      ...(await texts()),
      ...(await long()),
      ...(await crowd()),
      ...(await refusals()),
    };
  },

  calls,

  /** Notes something, and reads all notes. */
  async remember() {
    const entities = [
      { name, entityType: "client", observations: [`written by ${name}`] },
    ];
    return {
      created: await callJson("memory__create_entities", { entities }),
      graph: await callJson("memory__read_graph", {}),
    };
  },

  /** Hears that a resource has changed. */
  async watch() {
    const heard = new Promise((resolve) => (hearUpdated = resolve));
    await client.subscribeResource({ uri: WATCHED });
    const started = await call("everything__toggle-subscriber-updates", {});
    const updated = await heard;
    await call("everything__toggle-subscriber-updates", {});
    await client.unsubscribeResource({ uri: WATCHED });
    return { started, updated };
  },

  /** Answers what a server asks during a call. */
  async asked() {
    const prompt = { prompt: "think", maxTokens: 10 };
    const sampled = await call("everything__trigger-sampling-request", prompt);
    const name = "everything__trigger-elicitation-request";
    const [elicited, ...details] = (await client.callTool({ name, arguments: {} })).content;
    return { sampled, elicited: elicited.text, details: details.map((it) => it.text) };
  },

  /**
   * A call during which something happens to its server, or the daemon. That it has begun is
   * said in a line of its own.
   */
  async slow() {
    const onprogress = ({ progress }) => progress === 1 && say({ begun: true });
    const what = await tried(call(LONG, { duration: 60, steps: 240 }, { onprogress }));
    return typeof what === "string" ? { slow: what } : { error: what };
  },

  /** Finds a tool instead of reading a list, reads what it takes, and calls it. */
  async find() {
    const listed = (await client.listTools()).tools.map((it) => it.name);
    const query = { query: "add two numbers", limit: 3 };
    const search = await client.callTool({ name: "search_tools", arguments: query });
    const found = search.structuredContent.tools.map((it) => it.name);
    const describe = { name: "describe_tool", arguments: { name: found[0] } };
    const described = await client.callTool(describe);
    const takes = Object.keys(described.structuredContent.tool.inputSchema.properties).sort();
    const called = await call("call_tool", { name: found[0], arguments: { a: 2, b: 40 } });
    const unknown = { name: "everything__get-summ", arguments: {} };
    const friends = [];
    for (const [query, name, args] of FRIENDS) {
      const search = await client.callTool({ name: "search_tools", arguments: { query } });
      const described = await client.callTool({ name: "describe_tool", arguments: { name } });
      friends.push({
        found: search.structuredContent.tools.map((it) => it.name),
        described: described.structuredContent.tool.name,
        called: await call("call_tool", { name, arguments: args }),
      });
    }
    return { listed, friends, found, takes, called, missing: await call("call_tool", unknown) };
  },

  /** Lists the tools, and calls those that it is told to. */
  async use({ calls }) {
    const answers = [];
    for (const [tool, args] of calls) {
      const refused = ({ code }) => `refused: ${code}`;
      answers.push(await call(tool, args).catch(refused));
    }
    const { tools } = await client.listTools();
    return { version: transport.protocolVersion ?? agreed, tools, answers };
  },

  async changes() {
    return { changed };
  },
};

function connection([way, ...where]) {
  if (way === "stdio") {
    const [command, ...args] = where;
    // Of its own accord the SDK hands on a few variables only.
    return new StdioClientTransport({ command, args, env: process.env });
  }
  const [url, token] = where;
  const headers = { Authorization: `Bearer ${token}` };
  return new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
}

const transport = connection(process.argv.slice(2));
// Over stdio the SDK tells only the transport which revision was agreed on.
let agreed;
transport.setProtocolVersion ??= (version) => (agreed = version);

await client.connect(transport);
say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  const ask = JSON.parse(line);
  name = ask.name;
  say(await deeds[ask.do](ask));
}
await client.close();
