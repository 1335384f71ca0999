"""The tools of `fixture.py` that return what they want to know, and are called again with the
answers."""

import json

from mcp import MCPError
from mcp.server.mcpserver import Context
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)
from schemas import CONFIRM, one_text

Answer = CallToolResult | InputRequiredResult


def ask_user(message, schema):
    params = ElicitRequestFormParams(message=message, requested_schema=schema)
    return ElicitRequest(params=params)


def ask_model(words):
    message = SamplingMessage(role="user", content=TextContent(type="text", text=words))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))


def ask_who():
    return ask_user("What is your name?", one_text("name"))


def everything():
    return {
        "user_name": ask_who(),
        "greeting": ask_model("Generate a greeting"),
        "client_roots": ListRootsRequest(),
    }


def say(words):
    return CallToolResult(content=[TextContent(type="text", text=words)])


def greet(answers):
    return f"Hello, {(answers['user_name'].content or {}).get('name')}!"


def gather(ctx, questions, state=None):
    """Returns the answers if all questions have one, or else what is to be asked."""
    answers = ctx.input_responses or {}
    is_known = state is None or ctx.request_state == state
    if is_known and all(key in answers for key in questions):
        return answers, None
    return None, InputRequiredResult(input_requests=questions, request_state=state)


def can_be_asked(ctx):
    """Returns the questions that the client has declared it can answer."""
    can = ctx.client_capabilities
    needs = {"user_name": "elicitation", "greeting": "sampling", "client_roots": "roots"}
    return {
        key: question
        for key, question in everything().items()
        if getattr(can, needs[key], None) is not None
    }


# The tools that ask once: what, what they make of the answers, and the state if there is one.
ONCE = {
    "elicitation": (lambda _: {"user_name": ask_who()}, greet, None),
    "sampling": (
        lambda _: {"capital_question": ask_model("What is the capital of France?")},
        lambda answers: answers["capital_question"].content.text,
        None,
    ),
    "list_roots": (
        lambda _: {"client_roots": ListRootsRequest()},
        lambda answers: json.dumps([str(it.uri) for it in answers["client_roots"].roots]),
        None,
    ),
    "request_state": (
        lambda _: {"confirm": ask_user("Please confirm", CONFIRM)},
        lambda _: "state-ok",
        "confirming",
    ),
    "tampered_state": (
        lambda _: {"confirm": ask_user("Please confirm", CONFIRM)},
        lambda _: "state-ok",
        "confirming",
    ),
    "multiple_inputs": (lambda _: everything(), lambda answers: " ".join(answers), "three"),
    "capabilities": (can_be_asked, lambda _: "asked what it can be asked", None),
}


def add_once(server, name, description, questions, finish, state):
    @server.tool(name=name, description=description, structured_output=False)
    async def tool(ctx: Context) -> Answer:
        answers, asked = gather(ctx, questions(ctx), state)
        return asked or say(finish(answers))


def add_rounds(server):
    for name, (questions, finish, state) in ONCE.items():
        name = f"test_input_required_result_{name}"
        add_once(server, name, "Asks once", questions, finish, state)

    @server.tool(structured_output=False)
    async def test_missing_capability(ctx: Context) -> Answer:
        """Needs a client with a model."""
        if getattr(ctx.client_capabilities, "sampling", None) is None:
            lacking = {"requiredCapabilities": {"sampling": {}}}
            message = "the client has not declared `sampling`"
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, lacking)
        return say("the client can do it")

    @server.tool(structured_output=False)
    async def test_streaming_elicitation(ctx: Context) -> Answer:
        """Logs, then asks."""
        await ctx.info("about to ask")
        answers, asked = gather(ctx, {"user_name": ask_who()})
        return asked or say(greet(answers))

    @server.tool(structured_output=False)
    async def test_input_required_result_multi_round(ctx: Context) -> Answer:
        """Asks in two rounds."""
        answers = ctx.input_responses or {}
        state = json.loads(ctx.request_state or "{}")
        if "name" in state and "step2" in answers:
            return say(f"{state['name']} likes {(answers['step2'].content or {}).get('color')}")
        if "step1" in answers:
            question = ask_user("Step 2: What is your favorite color?", one_text("color"))
            state = json.dumps({"name": (answers["step1"].content or {}).get("name")})
            return InputRequiredResult(input_requests={"step2": question}, request_state=state)
        question = ask_user("Step 1: What is your name?", one_text("name"))
        return InputRequiredResult(input_requests={"step1": question}, request_state="{}")

    @server.prompt()
    async def test_input_required_result_prompt(ctx: Context):
        """Asks first."""
        question = ask_user("What context should the prompt use?", one_text("context"))
        answers, asked = gather(ctx, {"user_context": question})
        if asked:
            return asked
        return f"Use this: {(answers['user_context'].content or {}).get('context')}"
