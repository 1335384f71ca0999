"""The MCP toolset of Pydantic AI, on FastMCP's client. `features.py` has the checks."""

import contextlib
import json
import os

from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import MCPError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import BinaryContent

import features
from features import Answer

MODERN = "2026-07-28"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


class Pydantic(features.Library):
    unsupported = {
        "completion": "`MCPToolset` has no method for completion",
        "subscribe": "`MCPToolset` has no method to subscribe to a resource",
    }

    @contextlib.asynccontextmanager
    async def connected(self, transport, where):
        self.hear_progress = lambda *_: None
        self.meta = None
        async with MCPToolset(
            place(transport, where),
            tool_error_behavior="error",
            sampling_handler=self.think,
            elicitation_handler=self.fill_in,
            roots=[features.ROOT],
            log_handler=self.log,
            log_level=features.LEVEL,
            progress_handler=self.progress,
            init_timeout=features.LIMIT_SECONDS,
        ) as self.toolset:
            yield

    async def think(self, messages, _params, _context):
        self.asked.append(messages[0].content.text)
        return features.THOUGHT

    async def fill_in(self, message, _response_type, _params, _context):
        self.asked.append(message)
        return features.ANSWER

    async def log(self, message):
        self.hear_log(message.level, message.data)

    async def progress(self, done, total, _message):
        self.hear_progress(done, total)

    async def tools(self):
        tools = await self.toolset.list_tools()
        return {tool.name: (tool.description, tool.input_schema) for tool in tools}

    async def call(self, name, arguments):
        try:
            result = await self.toolset.direct_call_tool(name, arguments, metadata=self.meta)
        except ToolError as problem:
            return Answer(str(problem), True)
        # The toolset reads a text that is JSON.
        return Answer(result if isinstance(result, str) else json.dumps(result))

    async def call_with_progress(self, name, arguments, hear):
        self.hear_progress = hear
        return await self.call(name, arguments)

    async def resources(self):
        return [it.uri for it in await self.toolset.list_resources()]

    async def read(self, resource):
        content = await self.toolset.read_resource(resource)
        return content.data if isinstance(content, BinaryContent) else content

    async def set_level(self, level):
        # `log_level` holds for the legacy era; a request of the modern one names it itself.
        if self.toolset.client.protocol_version == MODERN:
            self.meta = {LOG_LEVEL: level}

    async def prompts(self):
        return [it.name for it in await self.toolset.list_prompts()]

    async def prompt(self, name, arguments):
        content = (await self.toolset.get_prompt(name, arguments)).messages[0].content
        return content if isinstance(content, str) else content.content

    def is_refusal(self, problem):
        return isinstance(problem, MCPError) and super().is_refusal(problem)


def place(transport, where):
    """Returns what the toolset connects to."""
    if transport == "stdio":
        command, *args = where
        return StdioTransport(command, args, env=dict(os.environ), keep_alive=False)
    url, token = where
    kind = SSETransport if transport == "sse" else StreamableHttpTransport
    return kind(url, auth=token)


if __name__ == "__main__":
    features.main(Pydantic())
