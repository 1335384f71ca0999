"""A client of xy in Python, with the version of the `mcp` package that speaks both eras.

    eras.py MODE stdio COMMAND ARGS…      or      eras.py MODE http URL TOKEN

MODE is the package's own: `auto`, `legacy`, or a revision that is taken without asking. It
connects, then does what each line of its stdin asks for, and answers with one line of JSON:
what it saw. It judges nothing, so that what must be so stands in one place, the test that
runs it. `eras.mjs` is the same in TypeScript and answers the same.
"""

import asyncio
import contextlib
import json
import os
import sys

import httpx2
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client

WATCHED = "xy://everything/demo://resource/dynamic/text/1"
LONG = "everything__trigger-long-running-operation"
MODERN = "2026-07-28"


class Visitor:
    def __init__(self, mode, server):
        self.name = None
        self.updated = asyncio.Queue()
        self.client = Client(
            server,
            mode=mode,
            client_info=types.Implementation(name="eras.py", version="1"),
            message_handler=self.hear,
            sampling_callback=self.think,
            elicitation_callback=self.fill_in,
        )

    async def hear(self, message):
        """Everything that is no answer."""
        match message:
            case types.ResourceUpdatedNotification():
                self.updated.put_nowait(str(message.params.uri))
            case Exception():
                raise message

    async def think(self, _context, _params):
        """What a model would do that a server asks for."""
        text = types.TextContent(type="text", text=f"{self.name} has thought")
        return types.CreateMessageResult(role="assistant", content=text, model="none")

    async def fill_in(self, _context, params):
        """Fills in what a server needs of a person."""
        content = {field: f"{self.name} says" for field in params.requested_schema["required"]}
        return types.ElicitResult(action="accept", content=content)

    async def call(self, tool, arguments, **how):
        """The first text of what a tool answers."""
        answer = await self.client.call_tool(tool, arguments, **how)
        text = answer.content[0].text
        return f"error: {text}" if answer.is_error else text

    async def call_json(self, tool, arguments):
        return json.loads(await self.call(tool, arguments))

    async def lists(self):
        async def every(ask, of, field):
            found, cursor = [], None
            while True:
                page = await ask(cursor=cursor)
                found += [str(getattr(it, field)) for it in getattr(page, of)]
                cursor = page.next_cursor
                if not cursor:
                    return found

        client = self.client
        return {
            "tools": await every(client.list_tools, "tools", "name"),
            "prompts": await every(client.list_prompts, "prompts", "name"),
            "resources": await every(client.list_resources, "resources", "uri"),
            "templates": await every(
                client.list_resource_templates, "resource_templates", "uri_template"
            ),
        }

    async def calls(self):
        there = {"source_timezone": "Asia/Tokyo", "time": "12:30", "target_timezone": "UTC"}
        return {
            "echo": await self.call("everything__echo", {"message": f"written by {self.name}"}),
            "sum": await self.call("everything__get-sum", {"a": 2, "b": 40}),
            "time": await self.call_json("time__get_current_time", {"timezone": "UTC"}),
            "converted": await self.call_json("time__convert_time", there),
        }

    async def texts(self):
        """A prompt, two resources, the end of a word."""
        client = self.client
        weather = {"city": "Bern", "state": "BE"}
        prompt = await client.get_prompt("everything__args-prompt", weather)
        dynamic = await client.read_resource(WATCHED)
        document = "xy://everything/demo://resource/static/document/features.md"
        static = await client.read_resource(document)
        named = types.PromptReference(type="ref/prompt", name="everything__completable-prompt")
        word = await client.complete(named, {"name": "department", "value": "E"})
        return {
            "prompt": prompt.messages[0].content.text,
            "dynamic": dynamic.contents[0].text,
            "static": static.contents[0].text,
            "word": word.completion.values,
        }

    async def long(self):
        """A call that tells how far it is, and one that is given up."""
        heard = []

        async def progress(done, total, _message):
            heard.append([done, total])

        told = await self.call(LONG, {"duration": 1, "steps": 4}, progress_callback=progress)
        try:
            gave_up = await self.call(LONG, {"duration": 30}, read_timeout_seconds=0.3)
        except MCPError as problem:
            gave_up = {"code": problem.error.code}
        return {"long": told, "progress": heard, "gave_up": gave_up}

    async def refusals(self):
        """What cannot be had."""
        seen = {"bad_arguments": await self.call("everything__get-sum", {"a": "x"})}
        for what, ask in {
            "unknown_tool": self.client.call_tool("everything__no-such-tool", {}),
            "unknown_resource": self.client.read_resource("no://where"),
        }.items():
            try:
                seen[what] = str(await ask)
            except MCPError as problem:
                seen[what] = {"code": problem.error.code}
        return seen

    async def tour(self):
        """Everything, once."""
        info = self.client.server_info
        seen = {"version": self.client.protocol_version, "server": info and info.name}
        seen |= await self.lists()
        seen |= await self.calls()
        seen |= await self.texts()
        seen |= await self.long()
        seen |= await self.refusals()
        return seen

    async def asked(self):
        """Answers what a server asks during a call."""
        prompt = {"prompt": "think", "maxTokens": 10}
        sampled = await self.call("everything__trigger-sampling-request", prompt)
        name = "everything__trigger-elicitation-request"
        elicited = (await self.client.call_tool(name, {})).content
        texts = [it.text for it in elicited]
        return {
            "version": self.client.protocol_version,
            "sampled": sampled,
            "elicited": texts[0],
            "details": texts[1:],
        }

    async def watch(self):
        """Hears that a resource has changed."""
        toggle = "everything__toggle-subscriber-updates"
        if self.client.protocol_version == MODERN:
            async with self.client.listen(resource_subscriptions=[WATCHED]) as changes:
                await self.call(toggle, {})
                updated = str((await anext(aiter(changes))).uri)
                await self.call(toggle, {})
        else:
            await self.client.subscribe_resource(WATCHED)
            await self.call(toggle, {})
            updated = await self.updated.get()
            await self.call(toggle, {})
            await self.client.unsubscribe_resource(WATCHED)
        return {"updated": updated}

    async def use(self, calls):
        """Lists the tools, and calls those that it is told to."""
        answers = []
        for tool, arguments in calls:
            try:
                answers.append(await self.call(tool, arguments))
            except MCPError as problem:
                answers.append(f"refused: {problem.error.code}")
        tools = (await self.client.list_tools()).tools
        return {
            "version": self.client.protocol_version,
            "tools": [it.model_dump(mode="json", exclude_none=True) for it in tools],
            "answers": answers,
        }


def say(what):
    print(json.dumps(what), flush=True)


@contextlib.asynccontextmanager
async def place(way, where):
    """Where the package connects to."""
    if way == "stdio":
        # Of its own accord the package hands on a few variables only.
        yield StdioServerParameters(command=where[0], args=where[1:], env=dict(os.environ))
    else:
        url, token = where
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as client:
            yield streamable_http_client(url, http_client=client)


async def main(mode, way, *where):
    async with place(way, list(where)) as server:
        visitor = Visitor(mode, server)
        async with visitor.client:
            say({"ready": True})
            while line := await asyncio.to_thread(sys.stdin.readline):
                ask = json.loads(line)
                visitor.name = ask["name"]
                if ask["do"] == "use":
                    say(await visitor.use(ask["calls"]))
                else:
                    say(await getattr(visitor, ask["do"])())


asyncio.run(main(*sys.argv[1:]))
