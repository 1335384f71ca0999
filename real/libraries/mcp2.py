"""Python's `mcp` 2.x, which speaks both eras. `features.py` has the command line and the checks.

`MODE` in the environment is the SDK's own: `auto` (its default) or `legacy`.
"""

import contextlib
import os

import httpx2
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

import features
from features import Answer

MODERN = "2026-07-28"


class Mcp2(features.Library):
    @contextlib.asynccontextmanager
    async def connected(self, transport, where):
        async with server(transport, where) as place:
            async with Client(
                place,
                mode=os.environ.get("MODE", "auto"),
                log_level=features.LEVEL,
                sampling_callback=self.think,
                elicitation_callback=self.fill_in,
                list_roots_callback=self.show_roots,
                logging_callback=self.log,
                message_handler=self.hear,
            ) as self.client:
                yield

    async def think(self, _context, params):
        self.asked.append(params.messages[0].content.text)
        text = types.TextContent(type="text", text=features.THOUGHT)
        return types.CreateMessageResult(role="assistant", content=text, model="none")

    async def fill_in(self, _context, params):
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content=features.ANSWER)

    async def show_roots(self, _context):
        return types.ListRootsResult(roots=[types.Root(uri=features.ROOT)])

    async def log(self, params):
        self.hear_log(params.level, params.data)

    async def hear(self, message):
        if isinstance(message, types.ResourceUpdatedNotification):
            self.hear_update(message.params.uri)

    @property
    def is_modern(self):
        return self.client.protocol_version == MODERN

    async def tools(self):
        tools = (await self.client.list_tools()).tools
        return {tool.name: (tool.description, tool.input_schema) for tool in tools}

    async def call(self, name, arguments):
        return answer(await self.client.call_tool(name, arguments))

    async def call_with_progress(self, name, arguments, hear):
        async def progress(done, total, _message):
            hear(done, total)

        called = self.client.call_tool(name, arguments, progress_callback=progress)
        return answer(await called)

    async def complete(self, prompt, argument, value):
        ref = types.PromptReference(type="ref/prompt", name=prompt)
        found = await self.client.complete(ref, {"name": argument, "value": value})
        return found.completion.values

    async def resources(self):
        return [str(it.uri) for it in (await self.client.list_resources()).resources]

    async def read(self, resource):
        return features.decoded((await self.client.read_resource(resource)).contents)

    @contextlib.asynccontextmanager
    async def watching(self, resource):
        if not self.is_modern:
            await self.client.subscribe_resource(resource)
            yield
            await self.client.unsubscribe_resource(resource)
            return
        async with self.client.listen(resource_subscriptions=[resource]) as changes:
            yield
            expected = str((await anext(aiter(changes))).uri)
            features.expect(expected, resource, "event of the subscription")

    async def set_level(self, level):
        # In the modern era each request carries `log_level`.
        if not self.is_modern:
            await self.client.set_logging_level(level)

    async def prompts(self):
        return [it.name for it in (await self.client.list_prompts()).prompts]

    async def prompt(self, name, arguments):
        return (await self.client.get_prompt(name, arguments)).messages[0].content.text

    def is_refusal(self, problem):
        return isinstance(problem, MCPError) and super().is_refusal(problem)


def answer(result):
    return Answer(result.content[0].text, bool(result.is_error))


@contextlib.asynccontextmanager
async def server(transport, where):
    """Yields what the SDK connects to."""
    if transport == "stdio":
        command, *args = where
        # The SDK hands on a few variables only unless it is told all of them.
        yield StdioServerParameters(command=command, args=args, env=dict(os.environ))
        return
    url, token = where
    headers = {"Authorization": f"Bearer {token}"}
    if transport == "sse":
        yield sse_client(url, headers, timeout=features.LIMIT_SECONDS)
    else:
        async with httpx2.AsyncClient(headers=headers, timeout=60) as client:
            # An event may have 1 MiB unless the SDK is told otherwise.
            yield streamable_http_client(url, http_client=client, max_sse_event_size=None)


if __name__ == "__main__":
    features.main(Mcp2())
