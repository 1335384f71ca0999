"""The client of FastMCP 4, which speaks both eras. `features.py` has the checks."""

import contextlib
import os

import mcp_types as types
from fastmcp import Client
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from mcp import MCPError
from mcp.client.subscriptions import listen

import features
from features import Answer

MODERN = "2026-07-28"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


class FastMcp(features.Library):
    @contextlib.asynccontextmanager
    async def connected(self, transport, where):
        async with Client(
            place(transport, where),
            roots=[features.ROOT],
            sampling_handler=self.think,
            elicitation_handler=self.fill_in,
            log_handler=self.log,
            message_handler=self.hear,
            timeout=features.LIMIT_SECONDS,
        ) as self.client:
            self.meta = None
            yield

    async def think(self, messages, _params, _context):
        self.asked.append(messages[0].content.text)
        return features.THOUGHT

    async def fill_in(self, message, _response_type, _params, _context):
        self.asked.append(message)
        return features.ANSWER

    async def log(self, message):
        self.hear_log(message.level, message.data)

    async def hear(self, message):
        if isinstance(message, types.ResourceUpdatedNotification):
            self.hear_update(message.params.uri)

    @property
    def is_modern(self):
        return self.client.protocol_version == MODERN

    async def tools(self):
        tools = await self.client.list_tools()
        return {tool.name: (tool.description, tool.input_schema) for tool in tools}

    async def call(self, name, arguments):
        result = await self.client.call_tool(
            name, arguments, raise_on_error=False, meta=self.meta
        )
        return Answer(result.content[0].text, result.is_error)

    async def call_with_progress(self, name, arguments, hear):
        async def progress(done, total, _message):
            hear(done, total)

        result = await self.client.call_tool(
            name, arguments, raise_on_error=False, progress_handler=progress
        )
        return Answer(result.content[0].text, result.is_error)

    async def complete(self, prompt, argument, value):
        ref = types.PromptReference(type="ref/prompt", name=prompt)
        return (await self.client.complete(ref, {"name": argument, "value": value})).values

    async def resources(self):
        return [str(it.uri) for it in await self.client.list_resources()]

    async def read(self, resource):
        return features.decoded(await self.client.read_resource(resource))

    @contextlib.asynccontextmanager
    async def watching(self, resource):
        # Subscriptions are left to the session of the SDK, which the client hands out.
        if self.is_modern:
            async with listen(self.client.session, resource_subscriptions=[resource]):
                yield
        else:
            await self.client.session.subscribe_resource(resource)
            yield
            await self.client.session.unsubscribe_resource(resource)

    async def set_level(self, level):
        if self.is_modern:
            self.meta = {LOG_LEVEL: level}
        else:
            await self.client.set_logging_level(level)

    async def prompts(self):
        return [it.name for it in await self.client.list_prompts()]

    async def prompt(self, name, arguments):
        return (await self.client.get_prompt(name, arguments)).messages[0].content.text

    def is_refusal(self, problem):
        return isinstance(problem, MCPError) and super().is_refusal(problem)


def place(transport, where):
    """Returns what the client connects to."""
    if transport == "stdio":
        command, *args = where
        return StdioTransport(command, args, env=dict(os.environ), keep_alive=False)
    url, token = where
    kind = SSETransport if transport == "sse" else StreamableHttpTransport
    return kind(url, auth=token)


if __name__ == "__main__":
    features.main(FastMcp())
