// A client of xy with the version of TypeScript's SDK that speaks both eras.
//
//     eras.mjs MODE stdio COMMAND ARGS…      or      eras.mjs MODE http URL TOKEN
//
// MODE is the SDK's own, `auto` or `legacy`, or `default` for what it does unasked. It
// connects, then does what each line of its stdin asks for, and answers with one line of
// JSON: what it saw. It judges nothing, so that what must be so stands in one place, the
// test that runs it. `eras.py` is the same in Python and answers the same.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// The SDK is installed elsewhere: where the environment says.
const require = createRequire(`${process.env.SDK_FOLDER}/`);
const sdk = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

const WATCHED = "xy://everything/demo://resource/dynamic/text/1";
const LONG = "everything__trigger-long-running-operation";

const [mode, ...where] = process.argv.slice(2);
const client = new sdk.Client(
  { name: "eras.mjs", version: "1" },
  {
    capabilities: { sampling: {}, elicitation: {} },
    ...(mode === "default" ? {} : { versionNegotiation: { mode } }),
  },
);

let name; // Of this client, among several.

/** What a model would do that a server asks for. */
client.setRequestHandler("sampling/createMessage", () => {
  const content = { type: "text", text: `${name} has thought` };
  return { role: "assistant", content, model: "none" };
});

/** Fills in what a server needs of a person. */
client.setRequestHandler("elicitation/create", ({ params }) => {
  const filled = params.requestedSchema.required.map((field) => [field, `${name} says`]);
  return { action: "accept", content: Object.fromEntries(filled) };
});

/** Hears of the next resource that has changed. */
let hearUpdated = () => {};
client.setNotificationHandler("notifications/resources/updated", ({ params }) => {
  hearUpdated(params.uri);
});

/** The first text of what a tool answers. */
async function call(tool, args, how) {
  const answer = await client.callTool({ name: tool, arguments: args }, how);
  const { text } = answer.content[0];
  return answer.isError ? `error: ${text}` : text;
}

const callJson = async (tool, args) => JSON.parse(await call(tool, args));

/** What became of something that may be refused. */
async function tried(something) {
  try {
    return await something;
  } catch (problem) {
    if (!(problem instanceof sdk.ProtocolError || problem instanceof sdk.SdkError)) throw problem;
    return { code: problem.code };
  }
}

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

/** All of each kind: without a cursor the SDK asks for every page by itself. */
async function lists() {
  const all = async (method, of, field) => (await client[method]())[of].map((it) => it[field]);
  return {
    tools: await all("listTools", "tools", "name"),
    prompts: await all("listPrompts", "prompts", "name"),
    resources: await all("listResources", "resources", "uri"),
    templates: await all("listResourceTemplates", "resourceTemplates", "uriTemplate"),
  };
}

async function calls() {
  const there = { source_timezone: "Asia/Tokyo", time: "12:30", target_timezone: "UTC" };
  return {
    echo: await call("everything__echo", { message: `written by ${name}` }),
    sum: await call("everything__get-sum", { a: 2, b: 40 }),
    time: await callJson("time__get_current_time", { timezone: "UTC" }),
    converted: await callJson("time__convert_time", there),
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
  return {
    prompt: prompt.messages[0].content.text,
    dynamic: dynamic.contents[0].text,
    static: fixed.contents[0].text,
    word: word.completion.values,
  };
}

/** A call that tells how far it is, and one that is given up. */
async function long() {
  const progress = [];
  const onprogress = ({ progress: done, total }) => progress.push([done, total]);
  const told = await call(LONG, { duration: 1, steps: 4 }, { onprogress });
  const gaveUp = await tried(call(LONG, { duration: 30 }, { timeout: 300 }));
  return { long: told, progress, gave_up: gaveUp };
}

/** What cannot be had. */
async function refusals() {
  return {
    bad_arguments: await call("everything__get-sum", { a: "x" }),
    unknown_tool: await tried(call("everything__no-such-tool", {})),
    unknown_resource: await tried(client.readResource({ uri: "no://where" })),
  };
}

const deeds = {
  /** Everything, once. */
  async tour() {
    return {
      version: client.getNegotiatedProtocolVersion(),
      server: client.getServerVersion()?.name,
      ...(await lists()),
      ...(await calls()),
      ...(await texts()),
      ...(await long()),
      ...(await refusals()),
    };
  },

  /** Answers what a server asks during a call. */
  async asked() {
    const prompt = { prompt: "think", maxTokens: 10 };
    const sampled = await call("everything__trigger-sampling-request", prompt);
    const name = "everything__trigger-elicitation-request";
    const [elicited, ...details] = (await client.callTool({ name, arguments: {} })).content;
    return {
      version: client.getNegotiatedProtocolVersion(),
      sampled,
      elicited: elicited.text,
      details: details.map((it) => it.text),
    };
  },

  /** Hears that a resource has changed. */
  async watch() {
    const heard = new Promise((resolve) => (hearUpdated = resolve));
    const isModern = client.getProtocolEra() === "modern";
    const listening = isModern
      ? await client.listen({ resourceSubscriptions: [WATCHED] })
      : await client.subscribeResource({ uri: WATCHED });
    await call("everything__toggle-subscriber-updates", {});
    const updated = await heard;
    await call("everything__toggle-subscriber-updates", {});
    await (isModern ? listening.close() : client.unsubscribeResource({ uri: WATCHED }));
    return { updated };
  },

  /** Lists the tools, and calls those that it is told to. */
  async use({ calls }) {
    const answers = [];
    for (const [tool, args] of calls) {
      const refused = ({ code }) => `refused: ${code}`;
      answers.push(await call(tool, args).catch(refused));
    }
    const { tools } = await client.listTools();
    return { version: client.getNegotiatedProtocolVersion(), tools, answers };
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
  return new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
}

await client.connect(connection(where));
say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  const ask = JSON.parse(line);
  name = ask.name;
  say(await deeds[ask.do](ask));
}
await client.close();
