// The features that every client library in TypeScript is tried with, and the check of each.
//
// A driver hands `run` an object with the few operations that these checks need. The command
// line, the environment and the output are those of `features.py`, which is the same in
// Python. `SDK_FOLDER` names the folder in which the libraries are installed.

import { isDeepStrictEqual } from "node:util";

// Nothing that works takes so long, on a busy machine either.
const LIMIT_MILLIS = 40_000;

const UNICODE = 'Zoë 你好 👩‍👩‍👧 \u0000\u2028 "quoted" \\ \t é e\u0301 \u{10ffff}';
const LARGE = `${"0123456789abcdef".repeat(64)}\n`.repeat(4096); // A little more than 4 MB.
const CONCURRENT_CALLS = 50;

const QUESTION = "Who are you, Zoë?";
const ANSWER = { username: "Zoë 👋", email: "zoe@example.com" };
const THOUGHT = "a thought of the client: 你好";
const ROOT = "file:///srv/library";
const LEVEL = "warning";
const LEVELS = ["warning", "error", "critical", "emergency"];
const WATCHED = "test://watched-resource";
const PICTURE = "\x89PNG\r\n\x1a\n";

const tool = (name) => (process.env.TOOL_PREFIX ?? "") + name;
const uri = (name) => (process.env.URI_PREFIX ?? "") + name;

const asked = []; // Messages of elicitations and prompts of samplings.
const logged = []; // Pairs of level and data.
const updated = []; // URIs of changed resources.
let wake = () => {};

/** What a driver tells its library to do with requests and notifications of the server. */
export const handlers = {
  sample({ params }) {
    asked.push(params.messages[0].content.text);
    return { role: "assistant", content: { type: "text", text: THOUGHT }, model: "none" };
  },
  elicit({ params }) {
    asked.push(params.message);
    return { action: "accept", content: ANSWER };
  },
  listRoots: () => ({ roots: [{ uri: ROOT }] }),
  log({ params }) {
    logged.push([params.level, params.data]);
    wake();
  },
  update({ params }) {
    updated.push(params.uri);
    wake();
  },
};

/** Waits until something is so; it is looked at after every notification. */
async function until(isSo) {
  while (!isSo()) await new Promise((resolve) => (wake = resolve));
}

function short(value) {
  const text = JSON.stringify(value) ?? String(value);
  return text.length < 300 ? text : `${text.slice(0, 300)}… (${text.length} characters)`;
}

function expect(seen, wanted, what) {
  if (!isDeepStrictEqual(seen, wanted)) {
    throw new Error(`${what}: ${short(seen)}, not ${short(wanted)}`);
  }
}

function expectIn(name, found) {
  if (!found.includes(name)) throw new Error(`no ${name} in ${short(found)}`);
}

/** The first text of a tool's result. */
const answer = ({ content, isError }) => ({ text: content[0].text, isError: isError ?? false });
const good = (text) => ({ text, isError: false });

const features = {
  async list(library) {
    const tools = Object.fromEntries((await library.tools()).map((it) => [it.name, it]));
    for (const [name, description, args] of [
      ["test_simple_text", "Answers a text", []],
      ["odd_result", '😀 a "result"', ["n"]],
      ["test_sampling", "Asks the client's model", ["prompt"]],
      ["greet", "Is never a task", ["name"]],
    ]) {
      expectIn(tool(name), Object.keys(tools));
      const found = tools[tool(name)];
      expect(found.description, description, `description of ${name}`);
      expect(Object.keys(found.inputSchema.properties ?? {}), args, `arguments of ${name}`);
    }
  },

  async unicode(library) {
    const seen = answer(await library.call(tool("greet"), { name: UNICODE }));
    expect(seen, good(`Hello, ${UNICODE}!`), "answer");
  },

  async error(library) {
    const seen = answer(await library.call(tool("test_error_handling"), {}));
    const text = "This tool intentionally returns an error for testing";
    expect(seen, { text, isError: true }, "answer");
  },

  async unknown(library) {
    const seen = await library.call(tool("no_such_tool"), {}).catch((problem) => problem.code);
    expect(seen, -32602, "code of the error");
  },

  async progress(library) {
    const heard = [];
    const onprogress = ({ progress, total }) => {
      heard.push([progress, total]);
      wake();
    };
    const called = library.call(tool("test_tool_with_progress"), {}, { onprogress });
    expect(answer(await called), good("Tool with progress executed successfully"), "answer");
    // These SDKs drop a notification that comes in one read with the answer after it.
    const steps = [[0, 100], [50, 100], [100, 100]];
    expect(heard, steps.slice(0, Math.max(heard.length, 2)), "progress");
  },

  async concurrent(library) {
    const names = Array.from({ length: CONCURRENT_CALLS }, (_, n) => `caller ${n}`);
    const calls = names.map((name) => library.call(tool("greet"), { name }));
    const seen = (await Promise.all(calls)).map(answer);
    expect(seen, names.map((name) => good(`Hello, ${name}!`)), "answers");
  },

  async elicitation(library) {
    asked.length = 0;
    const { text } = answer(await library.call(tool("test_elicitation"), { message: QUESTION }));
    expect(asked, [QUESTION], "question");
    const [head, content] = text.split("content=");
    expect(head, "User response: action=accept, ", "answer");
    expect(JSON.parse(content), ANSWER, "content");
  },

  async sampling(library) {
    asked.length = 0;
    const seen = answer(await library.call(tool("test_sampling"), { prompt: QUESTION }));
    expect(asked, [QUESTION], "prompt");
    expect(seen, good(`LLM response: ${THOUGHT}`), "answer");
  },

  async roots(library) {
    const { text } = answer(await library.call(tool("ask_roots"), {}));
    expect(JSON.parse(text).roots, [{ uri: ROOT }], "roots");
  },

  async completion(library) {
    const ref = { type: "ref/prompt", name: tool("test_prompt_with_arguments") };
    const seen = await library.complete({ ref, argument: { name: "arg1", value: "par" } });
    expect(seen.completion.values, ["paris", "park", "party"], "values");
  },

  async resources(library) {
    const found = (await library.resources()).map((it) => it.uri);
    for (const name of ["test://static-text", "test://static-binary", WATCHED]) {
      expectIn(uri(name), found);
    }
    const [{ text }] = (await library.read(uri("test://static-text"))).contents;
    expect(text, "This is the content of the static text resource.", "text");
    const [{ blob }] = (await library.read(uri("test://static-binary"))).contents;
    const bytes = Buffer.from(blob, "base64").toString("latin1");
    expect(bytes.slice(0, PICTURE.length), PICTURE, "bytes");
    const [filled] = (await library.read(uri("test://template/é1/data"))).contents;
    expect(JSON.parse(filled.text).templateTest, true, "contents of a template");
  },

  async subscribe(library) {
    const end = await library.watch(uri(WATCHED));
    const seen = answer(await library.call(tool("touch"), { uri: WATCHED }));
    expect(seen, good("touched"), "answer while subscribed");
    await until(() => updated.length > 0);
    expect(updated, [uri(WATCHED)], "updated resources");
    await end();
  },

  async logging(library) {
    const meta = await library.setLevel(LEVEL);
    logged.length = 0;
    expect(answer(await library.call(tool("every_level"), {}, {}, meta)), good("said"), "answer");
    await until(() => logged.some(([level]) => level === LEVELS.at(-1)));
    const said = { n: 1, at: "every level" };
    expect(logged, LEVELS.map((level) => [level, said]), "log");
  },

  async cancel(library) {
    const abort = new AbortController();
    let begin;
    const begun = new Promise((resolve) => (begin = resolve));
    const how = { onprogress: begin, signal: abort.signal };
    const called = library.call(tool("wait_for_cancel"), {}, how).catch((problem) => problem);
    await begun;
    abort.abort("enough");
    if (!((await called) instanceof Error)) throw new Error("a cancelled call answers");
    const seen = answer(await library.call(tool("last_cancelled"), {}));
    expect(seen.isError, false, "failure");
    expect(Object.keys(JSON.parse(seen.text)).sort(), ["reason", "x-more"], "cancellation");
  },

  async prompt(library) {
    const name = tool("test_prompt_with_arguments");
    expectIn(name, (await library.prompts()).map((it) => it.name));
    const seen = await library.prompt({ name, arguments: { arg1: "Zoë", arg2: "你好" } });
    const wanted = "Prompt with arguments: arg1='Zoë', arg2='你好'";
    expect(seen.messages[0].content.text, wanted, "prompt");
  },

  // The last: a library that cannot take it may lose its connection.
  async large(library) {
    const seen = answer(await library.call(tool("greet"), { name: LARGE }));
    expect(seen, good(`Hello, ${LARGE}!`), "answer");
  },
};

/** Runs something, for a limited time. */
async function limited(something) {
  let timer;
  const late = new Promise((_, reject) => {
    const why = new Error(`not done within ${LIMIT_MILLIS / 1000} s`);
    timer = setTimeout(() => reject(why), LIMIT_MILLIS);
  });
  await Promise.race([something, late]).finally(() => clearTimeout(timer));
}

/** Tries every feature with a library that is connected. */
export async function run(library) {
  for (const [feature, check] of Object.entries(features)) {
    const say = (result, why) =>
      process.stdout.write(`${JSON.stringify({ feature, result, why })}\n`);
    const reason = library.unsupported?.[feature];
    if (reason) {
      say("unsupported", reason);
      continue;
    }
    await limited(check(library)).then(
      () => say("ok", ""),
      (problem) => say("failed", String(problem).slice(0, 600)),
    );
  }
}

/** The transport of the command line, made of the classes of an SDK. */
export function transport({ Stdio, Http, Sse }) {
  const [kind, ...where] = process.argv.slice(2);
  if (kind === "stdio") {
    const [command, ...args] = where;
    // The SDKs hand on a few variables only unless they are told all of them.
    return new Stdio({ command, args, env: process.env });
  }
  const [url, token] = where;
  const headers = { Authorization: `Bearer ${token}` };
  return new (kind === "sse" ? Sse : Http)(new URL(url), { requestInit: { headers } });
}
