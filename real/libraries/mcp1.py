"""Python's `mcp` 1.x. `features.py` has the command line and the checks."""

import contextlib
import os

import httpx
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl

import features
from features import Answer


class Mcp1(features.Library):
    @contextlib.asynccontextmanager
    async def connected(self, transport, where):
        async with streams(transport, where) as (read, write, *_):
            async with ClientSession(
                read,
                write,
                sampling_callback=self.think,
                elicitation_callback=self.fill_in,
                list_roots_callback=self.show_roots,
                logging_callback=self.log,
                message_handler=self.hear,
            ) as self.session:
                await self.session.initialize()
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
        match getattr(message, "root", message):
            case types.ResourceUpdatedNotification(params=params):
                self.hear_update(params.uri)
            case types.ProgressNotification(params=params):
                self.progress_token = params.progressToken

    async def tools(self):
        tools = (await self.session.list_tools()).tools
        return {tool.name: (tool.description, tool.inputSchema) for tool in tools}

    async def call(self, name, arguments):
        return answer(await self.session.call_tool(name, arguments))

    async def call_with_progress(self, name, arguments, hear):
        async def progress(done, total, _message):
            hear(done, total)

        called = self.session.call_tool(name, arguments, progress_callback=progress)
        return answer(await called)

    async def give_up(self, task):
        # This SDK tells the server nothing by itself; its token for progress is the id.
        params = types.CancelledNotificationParams(requestId=self.progress_token, reason="enough")
        cancelled = types.CancelledNotification(method="notifications/cancelled", params=params)
        await self.session.send_notification(types.ClientNotification(cancelled))
        await super().give_up(task)

    async def complete(self, prompt, argument, value):
        ref = types.PromptReference(type="ref/prompt", name=prompt)
        found = await self.session.complete(ref, {"name": argument, "value": value})
        return found.completion.values

    async def resources(self):
        return [str(it.uri) for it in (await self.session.list_resources()).resources]

    async def read(self, resource):
        return features.decoded((await self.session.read_resource(AnyUrl(resource))).contents)

    @contextlib.asynccontextmanager
    async def watching(self, resource):
        await self.session.subscribe_resource(AnyUrl(resource))
        yield
        await self.session.unsubscribe_resource(AnyUrl(resource))

    async def set_level(self, level):
        await self.session.set_logging_level(level)

    async def prompts(self):
        return [it.name for it in (await self.session.list_prompts()).prompts]

    async def prompt(self, name, arguments):
        return (await self.session.get_prompt(name, arguments)).messages[0].content.text

    def is_refusal(self, problem):
        return isinstance(problem, McpError) and super().is_refusal(problem)


def answer(result):
    return Answer(result.content[0].text, result.isError)


@contextlib.asynccontextmanager
async def streams(transport, where):
    """Opens the streams of a transport."""
    if transport == "stdio":
        command, *args = where
        # The SDK hands on a few variables only unless it is told all of them.
        server = StdioServerParameters(command=command, args=args, env=dict(os.environ))
        async with stdio_client(server) as pair:
            yield pair
        return
    url, token = where
    headers = {"Authorization": f"Bearer {token}"}
    if transport == "sse":
        async with sse_client(url, headers, timeout=features.LIMIT_SECONDS) as pair:
            yield pair
    else:
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            async with streamable_http_client(url, http_client=client) as pair:
                yield pair


if __name__ == "__main__":
    features.main(Mcp1())
