"""The server of the conformance suite on version 2 of Python's `mcp`, which speaks both eras.

    fixture.py stdio      or      fixture.py http PORT

Over HTTP legacy clients have sessions. It says on stderr where it listens, and ends with its
stdin. Some tools ask in the middle of a call, which this SDK does for legacy clients only;
those in `rounds.py` return what they want to know, for modern clients. `fixture1.mjs` and
`fixture2.mjs` offer the same on other SDKs.
"""

import asyncio
import base64
import json
import os
import socket
import sys
import threading

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.streamable_http import EventMessage, EventStore
from mcp_types import (
    AudioContent,
    CallToolResult,
    Completion,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from rounds import add_rounds
from schemas import FORMS, IN_HEADERS, SCHEMA_2020_12

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

# How long the client of `test_reconnection` is left alone, and after how long it comes back.
AWAY_SECONDS = int(os.environ.get("FIXTURE_AWAY_MS", "2000")) / 1000
RETRY_MS = 500

server = MCPServer("fixture.py", version="1", log_level="WARNING")
add_rounds(server)


def text(words):
    return TextContent(type="text", text=words)


def picture():
    return ImageContent(type="image", data=PICTURE, mime_type="image/png")


def embedded(uri, mime_type, words):
    contents = TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    return EmbeddedResource(type="resource", resource=contents)


def result(*content, is_error=False):
    return CallToolResult(content=list(content), is_error=is_error)


# The tools that ask for nothing and only answer: the description and the result of each.
PLAIN_TOOLS = {
    "test_simple_text": (
        "Returns a text",
        result(text("This is a simple text response for testing.")),
    ),
    "test_image_content": ("Returns a picture", result(picture())),
    "test_audio_content": (
        "Returns a sound",
        result(AudioContent(type="audio", data=SOUND, mime_type="audio/wav")),
    ),
    "test_embedded_resource": (
        "Returns a resource",
        result(
            embedded(
                "test://embedded-resource", "text/plain", "This is an embedded resource content."
            )
        ),
    ),
    "test_multiple_content_types": (
        "Returns a text, a picture and a resource",
        result(
            text("Multiple content types test:"),
            picture(),
            embedded(
                "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
            ),
        ),
    ),
    "test_error_handling": (
        "Always fails",
        result(text("This tool intentionally returns an error for testing"), is_error=True),
    ),
}


def add_plain(name, description, answer):
    @server.tool(name=name, description=description, structured_output=False)
    def tool() -> CallToolResult:
        return answer


for name, (description, answer) in PLAIN_TOOLS.items():
    add_plain(name, description, answer)


@server.tool(structured_output=False)
async def test_tool_with_logging(ctx: Context) -> str:
    """Logs."""
    for words in ["Tool execution started", "Tool processing data", "Tool execution completed"]:
        await ctx.info(words)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


@server.tool(structured_output=False)
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress."""
    for progress in [0, 50, 100]:
        await ctx.report_progress(progress, 100, f"at {progress}")
        await asyncio.sleep(0.05)
    return "Tool with progress executed successfully"


@server.tool(structured_output=False)
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    answer = await ctx.session.create_message(
        messages=[SamplingMessage(role="user", content=text(prompt))],
        max_tokens=100,
        related_request_id=ctx.request_id,
    )
    return f"LLM response: {answer.content.text}"


async def elicit(ctx, message, tool):
    answer = await ctx.session.elicit_form(message, FORMS[tool], related_request_id=ctx.request_id)
    return f"User response: action={answer.action}, content={json.dumps(answer.content or {})}"


@server.tool(structured_output=False)
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user."""
    return await elicit(ctx, message, "test_elicitation")


@server.tool(structured_output=False)
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks the user, with defaults."""
    return await elicit(ctx, "Please fill in.", "test_elicitation_sep1034_defaults")


@server.tool(structured_output=False)
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Lets the user choose."""
    return await elicit(ctx, "Please choose.", "test_elicitation_sep1330_enums")


@server.tool(structured_output=False)
async def test_reconnection(ctx: Context) -> str:
    """Closes the client's stream."""
    await asyncio.sleep(0.05)
    await ctx.close_sse_stream()
    await asyncio.sleep(AWAY_SECONDS)
    return "Reconnection test completed successfully."


@server.tool(structured_output=False, description="Tool with JSON Schema 2020-12 features")
def json_schema_2020_12_tool(name: str = "") -> str:
    return name


@server.tool(structured_output=False)
def in_headers(region: str = "", count: int = 0, loud: bool = False) -> str:
    """Has its arguments in headers too."""
    return json.dumps({"region": region, "count": count, "loud": loud})


# The decorator makes a schema of the function's arguments; these tools have their own.
for name, schema in {
    "json_schema_2020_12_tool": SCHEMA_2020_12,
    "in_headers": IN_HEADERS,
}.items():
    server._tool_manager.get_tool(name).parameters = schema


@server.tool(structured_output=False)
async def test_logging_tool(ctx: Context) -> str:
    """Logs if that is wanted."""
    await ctx.info("from the tool that logs")
    return "logged, if that was wanted"


@server.tool(structured_output=False)
async def test_trigger_tool_change(ctx: Context) -> str:
    """Tells that the tools have changed."""
    await ctx.notify_tools_changed()
    return "told"


@server.tool(structured_output=False)
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Tells that the prompts have changed."""
    await ctx.notify_prompts_changed()
    return "told"


@server.resource("test://static-text", name="Static Text", mime_type="text/plain")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary", name="Static Binary", mime_type="image/png")
def static_binary() -> bytes:
    return base64.b64decode(PICTURE)


@server.resource("test://watched-resource", name="Watched", mime_type="text/plain")
def watched() -> str:
    return "Watched resource content"


@server.resource("test://template/{id}/data", name="Template", mime_type="application/json")
def template(id: str) -> str:
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.prompt()
def test_simple_prompt() -> str:
    """Takes no arguments."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Takes two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list:
    """Has a resource in it."""
    resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    request = text("Please process the embedded resource above.")
    return [UserMessage(content=resource), UserMessage(content=request)]


@server.prompt()
def test_prompt_with_image() -> list:
    """Has a picture in it."""
    request = text("Please analyze the image above.")
    return [UserMessage(content=picture()), UserMessage(content=request)]


@server.completion()
async def complete(_ref, argument, _context):
    values = [word for word in ["paris", "park", "party"] if word.startswith(argument.value)]
    return Completion(values=values, total=len(values), has_more=False)


async def accept(_ctx, _params):
    return EmptyResult()


# The high-level server has no subscriptions and no log level of the legacy era.
for method, params in {
    "resources/subscribe": SubscribeRequestParams,
    "resources/unsubscribe": UnsubscribeRequestParams,
    "logging/setLevel": SetLevelRequestParams,
}.items():
    server._lowlevel_server.add_request_handler(method, params, accept)


class Events(EventStore):
    """Keeps the events of all streams, for clients that come back."""

    def __init__(self):
        self.events = []

    async def store_event(self, stream_id, message):
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id, send_callback):
        last = int(last_event_id)
        wanted = self.events[last - 1][0]
        for number, (stream_id, message) in enumerate(self.events[last:], last + 1):
            if stream_id == wanted and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return wanted


def end_with_stdin():
    sys.stdin.read()
    os._exit(0)


def serve_http(port):
    app = server.streamable_http_app(event_store=Events(), retry_interval=RETRY_MS)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    serve_http(int(sys.argv[2]))
