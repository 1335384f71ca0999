// The tools of `fixture2.mjs` that return what they want to know, and are called again with
// the answers.

import { createRequire } from "node:module";
import { CONFIRM, oneText, say, text, thought } from "./contents.mjs";

const require = createRequire(`${process.env.SDK_FOLDER}/`);
const { z } = require("zod");

export function addRounds(server, sdk, states) {
  const { inputRequired } = sdk;
  const ask = {
    text: (message, field) => inputRequired.elicit({ message, requestedSchema: oneText(field) }),
    confirm: () => inputRequired.elicit({ message: "Please confirm", requestedSchema: CONFIRM }),
    model: (words) => inputRequired.createMessage(thought(words)),
    roots: () => inputRequired.listRoots(),
  };
  const who = () => ask.text("What is your name?", "name");
  const everything = () => ({
    user_name: who(),
    greeting: ask.model("Generate a greeting"),
    client_roots: ask.roots(),
  });

  /** Returns the answers if all questions have one, or else what is to be asked. */
  function gather(ctx, inputRequests, requestState) {
    const answers = ctx.mcpReq.inputResponses ?? {};
    const isKnown = Object.keys(inputRequests).every((key) => answers[key]);
    return isKnown ? { answers } : { asked: inputRequired({ inputRequests, requestState }) };
  }

  /** Adds a tool that asks once and then says what `finish` makes of the answers. */
  function add(name, description, questions, finish, state) {
    const config = { description, inputSchema: z.object({}) };
    server.registerTool(name, config, async (_arguments, ctx) => {
      const requestState = state && (await states.mint(state));
      const { answers, asked } = gather(ctx, questions(ctx), requestState);
      if (asked) return asked;
      if (state && ctx.mcpReq.requestState() !== state)
        return inputRequired({ inputRequests: questions(ctx), requestState });
      return say(finish(answers));
    });
  }

  const named = "test_input_required_result_";
  const greet = ({ user_name: { content } }) => `Hello, ${content?.name}!`;
  add(`${named}elicitation`, "Asks the user", () => ({ user_name: who() }), greet);
  const capital = () => ({ capital_question: ask.model("What is the capital of France?") });
  add(`${named}sampling`, "Asks the model", capital, ({ capital_question }) =>
    String(capital_question.content?.text),
  );
  const roots = () => ({ client_roots: ask.roots() });
  add(`${named}list_roots`, "Asks for the roots", roots, ({ client_roots }) =>
    JSON.stringify(client_roots.roots),
  );
  for (const which of ["request_state", "tampered_state"]) {
    const confirm = () => ({ confirm: ask.confirm() });
    add(named + which, "Asks with a state", confirm, () => "state-ok", "confirming");
  }
  add(`${named}multiple_inputs`, "Asks three things", everything, JSON.stringify, "three");
  const canBeAsked = (ctx) => {
    const can = ctx.mcpReq.envelope?.[sdk.CLIENT_CAPABILITIES_META_KEY] ?? {};
    const { user_name, greeting, client_roots } = everything();
    return {
      ...(can.elicitation && { user_name }),
      ...(can.sampling && { greeting }),
      ...(can.roots && { client_roots }),
    };
  };
  const capabilities = "Asks what the client can be asked";
  add(`${named}capabilities`, capabilities, canBeAsked, () => "asked what it can be asked");
  const unused = () => ({ unused: ask.model("") });
  add("test_missing_capability", "Needs a model", unused, () => "the client can do it");

  const streaming = { description: "Logs, then asks", inputSchema: z.object({}) };
  server.registerTool("test_streaming_elicitation", streaming, async (_arguments, ctx) => {
    await ctx.mcpReq.log("info", "about to ask");
    const { answers, asked } = gather(ctx, { user_name: who() });
    return asked ?? say(greet(answers));
  });

  const twice = { description: "Asks in two rounds", inputSchema: z.object({}) };
  server.registerTool(`${named}multi_round`, twice, async (_arguments, ctx) => {
    const { step1, step2 } = ctx.mcpReq.inputResponses ?? {};
    const state = ctx.mcpReq.requestState();
    if (state?.name && step2) return say(`${state.name} likes ${step2.content?.color}`);
    const asked = step1
      ? { step2: ask.text("Step 2: What is your favorite color?", "color") }
      : { step1: ask.text("Step 1: What is your name?", "name") };
    const requestState = await states.mint(step1 ? { name: step1.content?.name } : {});
    return inputRequired({ inputRequests: asked, requestState });
  });

  const asking = { description: "Asks first" };
  server.registerPrompt("test_input_required_result_prompt", asking, (ctx) => {
    const context = ask.text("What context should the prompt use?", "context");
    const { answers, asked } = gather(ctx, { user_context: context });
    const words = () => `Use this: ${answers.user_context.content?.context}`;
    return asked ?? { messages: [{ role: "user", content: text(words()) }] };
  });
}
