// The texts, pictures and schemas that the conformance suite asks of a server, for the
// fixtures in TypeScript. `fixture1.mjs` and `fixture2.mjs` serve them.

export const PICTURE =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";

export const text = (text) => ({ type: "text", text });
export const say = (words) => ({ content: [text(words)] });
const picture = { type: "image", data: PICTURE, mimeType: "image/png" };
const embedded = (uri, mimeType, text) => ({ type: "resource", resource: { uri, mimeType, text } });

/** The tools that ask for nothing and only answer: the description and the result of each. */
export const PLAIN_TOOLS = {
  test_simple_text: ["Returns a text", say("This is a simple text response for testing.")],
  test_image_content: ["Returns a picture", { content: [picture] }],
  test_audio_content: [
    "Returns a sound",
    { content: [{ type: "audio", data: SOUND, mimeType: "audio/wav" }] },
  ],
  test_embedded_resource: [
    "Returns a resource",
    {
      content: [
        embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."),
      ],
    },
  ],
  test_multiple_content_types: [
    "Returns a text, a picture and a resource",
    {
      content: [
        text("Multiple content types test:"),
        picture,
        embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
      ],
    },
  ],
  test_error_handling: [
    "Always fails",
    { ...say("This tool intentionally returns an error for testing"), isError: true },
  ],
};

export const LOGGED = ["Tool execution started", "Tool processing data", "Tool execution completed"];
export const PROGRESS = [0, 50, 100];

const object = (properties, required) => ({ type: "object", properties, required });
const string = (description, more) => ({ type: "string", description, ...more });
const titled = (word, count) =>
  [1, 2, 3].slice(0, count).map((n) => ({
    const: `value${n}`,
    title: `${["First", "Second", "Third"][n - 1]} ${word}`,
  }));
const options = ["option1", "option2", "option3"];
const several = (description, items) => ({
  type: "array",
  description,
  minItems: 1,
  maxItems: 3,
  items,
});

/** What a user is asked to fill in, by the tool that asks. */
export const FORMS = {
  test_elicitation: object(
    { username: string("User's response"), email: string("User's email address") },
    ["username", "email"],
  ),
  test_elicitation_sep1034_defaults: object(
    {
      name: string("User name", { default: "John Doe" }),
      age: { type: "integer", description: "User age", default: 30 },
      score: { type: "number", description: "User score", default: 95.5 },
      status: string("User status", { enum: ["active", "inactive", "pending"], default: "active" }),
      verified: { type: "boolean", description: "Verification status", default: true },
    },
    [],
  ),
  test_elicitation_sep1330_enums: object(
    {
      untitledSingle: string("Select one option", { enum: options }),
      titledSingle: string("Select one option with titles", { oneOf: titled("Option", 3) }),
      legacyEnum: string("Select one option (legacy)", {
        enum: ["opt1", "opt2", "opt3"],
        enumNames: ["Option One", "Option Two", "Option Three"],
      }),
      untitledMulti: several("Select multiple options", { type: "string", enum: options }),
      titledMulti: several("Select multiple options with titles", { anyOf: titled("Choice", 3) }),
    },
    [],
  ),
};

/** A schema of one text, or of one decision. */
export const oneText = (field) => object({ [field]: { type: "string" } }, [field]);
export const CONFIRM = object({ ok: { type: "boolean" } }, ["ok"]);

/** What the client's model is asked. */
export const thought = (words) => ({
  messages: [{ role: "user", content: text(words) }],
  maxTokens: 100,
});

/** A schema that uses most of JSON Schema 2020-12. */
export const SCHEMA_2020_12 = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  $defs: {
    address: {
      $anchor: "addressDef",
      type: "object",
      properties: { street: { type: "string" }, city: { type: "string" } },
    },
  },
  properties: {
    name: { type: "string" },
    address: { $ref: "#/$defs/address" },
    contactMethod: { type: "string", enum: ["phone", "email"] },
    phone: { type: "string" },
    email: { type: "string" },
  },
  allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
  if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
  then: { required: ["phone"] },
  else: { required: ["email"] },
  additionalProperties: false,
};

/** A schema whose arguments are mirrored into HTTP headers. */
export const IN_HEADERS = object(
  {
    region: { type: "string", "x-mcp-header": "Region" },
    count: { type: "integer", "x-mcp-header": "Count" },
    loud: { type: "boolean", "x-mcp-header": "Loud" },
  },
  [],
);

/** The resources that stay as they are: name, type and contents of each. */
export const RESOURCES = {
  "test://static-text": [
    "Static Text",
    "text/plain",
    { text: "This is the content of the static text resource." },
  ],
  "test://static-binary": ["Static Binary", "image/png", { blob: PICTURE }],
  "test://watched-resource": ["Watched", "text/plain", { text: "Watched resource content" }],
};
export const TEMPLATE = "test://template/{id}/data";
export const contents = (uri, mimeType, rest) => ({ contents: [{ uri, mimeType, ...rest }] });
export const fromTemplate = (uri, id) =>
  contents(uri, "application/json", {
    text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }),
  });

const messages = (...contents) => ({
  messages: contents.map((content) => ({ role: "user", content })),
});

/** The prompts: the description, the arguments, and what each makes of them. */
export const PROMPTS = {
  test_simple_prompt: [
    "Takes no arguments",
    [],
    () => messages(text("This is a simple prompt for testing.")),
  ],
  test_prompt_with_arguments: [
    "Takes two arguments",
    ["arg1", "arg2"],
    ({ arg1, arg2 }) => messages(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)),
  ],
  test_prompt_with_embedded_resource: [
    "Has a resource in it",
    ["resourceUri"],
    ({ resourceUri }) =>
      messages(
        embedded(resourceUri, "text/plain", "Embedded resource content for testing."),
        text("Please process the embedded resource above."),
      ),
  ],
  test_prompt_with_image: [
    "Has a picture in it",
    [],
    () => messages(picture, text("Please analyze the image above.")),
  ],
};

export const complete = (begun) =>
  ["paris", "park", "party"].filter((word) => word.startsWith(begun));

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** How long the client of `test_reconnection` is left alone. */
export const AWAY_MS = Number(process.env.FIXTURE_AWAY_MS ?? 2000);
export const RECONNECTED = say("Reconnection test completed successfully.");
/** After how long a client whose stream was closed comes back. */
export const RETRY_MS = 500;

/** Keeps the events of all streams, for clients that come back. */
export class EventStore {
  #events = [];

  async storeEvent(streamId, message) {
    this.#events.push([streamId, message]);
    return String(this.#events.length);
  }

  async getStreamIdForEventId(id) {
    return this.#events[Number(id) - 1]?.[0];
  }

  async replayEventsAfter(id, { send }) {
    const streamId = await this.getStreamIdForEventId(id);
    for (const [index, [stream, message]] of this.#events.entries()) {
      const isLater = stream === streamId && index >= Number(id);
      // An empty message marks where a stream began.
      if (isLater && Object.keys(message).length) await send(String(index + 1), message);
    }
    return streamId;
  }
}

/** Says on stderr where a server listens, and ends the process when its stdin is closed. */
export function announce(server) {
  server.listen(Number(process.argv[3] ?? 0), "127.0.0.1", () => {
    process.stderr.write(`listening on 127.0.0.1:${server.address().port}\n`);
  });
  process.stdin.on("end", () => process.exit(0)).resume();
}
