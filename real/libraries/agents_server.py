"""The MCP servers of OpenAI's Agents SDK, on `mcp` 2.x. `features.py` has the checks."""

import contextlib
import os

import mcp_types as types
from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp
from mcp import MCPError

import features
from features import Answer

LOG_LEVEL = "io.modelcontextprotocol/logLevel"


class Agents(features.Library):
    unsupported = {
        "elicitation": "an MCP server of the SDK takes no elicitation callback",
        "sampling": "an MCP server of the SDK takes no sampling callback",
        "roots": "an MCP server of the SDK takes no roots",
        "completion": "an MCP server of the SDK has no method for completion",
        "subscribe": "an MCP server of the SDK has no method to subscribe to a resource",
    }

    sets_level = False

    @contextlib.asynccontextmanager
    async def connected(self, transport, where):
        self.hear_progress = lambda *_: None
        kind, params = place(transport, where)
        async with kind(
            params,
            client_session_timeout_seconds=features.LIMIT_SECONDS,
            message_handler=self.hear,
        ) as self.server:
            yield

    async def hear(self, message):
        match message:
            case types.ProgressNotification(params=params):
                self.hear_progress(params.progress, params.total)
            case types.LoggingMessageNotification(params=params):
                self.hear_log(params.level, params.data)

    async def tools(self):
        tools = await self.server.list_tools()
        return {tool.name: (tool.description, tool.input_schema) for tool in tools}

    async def call(self, name, arguments, meta=None):
        # A request of the modern era names the level itself; the legacy one ignores it.
        meta = {LOG_LEVEL: features.LEVEL, **(meta or {})}
        result = await self.server.call_tool(name, arguments, meta=meta)
        return Answer(result.content[0].text, bool(result.is_error))

    async def call_with_progress(self, name, arguments, hear):
        self.hear_progress = hear
        return await self.call(name, arguments, {"progressToken": "token of the driver"})

    async def resources(self):
        return [str(it.uri) for it in (await self.server.list_resources()).resources]

    async def read(self, resource):
        return features.decoded((await self.server.read_resource(resource)).contents)

    async def prompts(self):
        return [it.name for it in (await self.server.list_prompts()).prompts]

    async def prompt(self, name, arguments):
        return (await self.server.get_prompt(name, arguments)).messages[0].content.text

    def is_refusal(self, problem):
        return isinstance(problem, MCPError) and super().is_refusal(problem)


def place(transport, where):
    """Returns the kind of server of the SDK, and its parameters."""
    if transport == "stdio":
        command, *args = where
        return MCPServerStdio, {"command": command, "args": args, "env": dict(os.environ)}
    url, token = where
    params = {
        "url": url,
        "headers": {"Authorization": f"Bearer {token}"},
        "timeout": features.LIMIT_SECONDS,
    }
    return (MCPServerSse if transport == "sse" else MCPServerStreamableHttp), params


if __name__ == "__main__":
    features.main(Agents())
