"""A client of xy in Python, with the `mcp` package, as a person would write one.

    client.py stdio COMMAND ARGS…      or      client.py http URL TOKEN

It connects, then does what each line of its stdin asks for, and answers with one line of
JSON: what it saw. It judges nothing, so that what must be so stands in one place, the test
that runs it. `client.mjs` is the same in TypeScript's SDK and answers the same.
"""

import asyncio
import contextlib
import json
import os
import sys
from datetime import timedelta

from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl

WATCHED = "xy://everything/demo://resource/dynamic/text/1"
LONG = "everything__trigger-long-running-operation"

# What is looked for among the tools of other servers: the words, the tool, its arguments.
FRIENDS = [
    ("what time is it in another timezone", "time__get_current_time", {"timezone": "UTC"}),
    ("read the whole knowledge graph", "memory__read_graph", {}),
]


class Client:
    def __init__(self):
        self.name = None
        self.session = None
        self.welcome = None
        self.updated = asyncio.Queue()
        self.changed = 0

    async def hear(self, message):
        """Everything that is no answer."""
        match message:
            case types.ServerNotification(root=types.ResourceUpdatedNotification() as told):
                self.updated.put_nowait(str(told.params.uri))
            case types.ServerNotification(root=types.ToolListChangedNotification()):
                self.changed += 1
            case Exception():
                raise message

    async def think(self, _context, _params):
        """What a model would do that a server asks for."""
        text = types.TextContent(type="text", text=f"{self.name} has thought")
        return types.CreateMessageResult(role="assistant", content=text, model="none")

    async def fill_in(self, _context, params):
        """Fills in what a server needs of a person."""
        content = {field: f"{self.name} says" for field in params.requestedSchema["required"]}
        return types.ElicitResult(action="accept", content=content)

    async def call(self, tool, arguments, **how):
        """The first text of what a tool answers."""
        answer = await self.session.call_tool(tool, arguments, **how)
        text = answer.content[0].text
        return f"error: {text}" if answer.isError else text

    async def pages(self, ask, of):
        """All entries of a list."""
        found, cursor = [], None
        while True:
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await ask(params=params)
            found += getattr(page, of)
            cursor = page.nextCursor
            if not cursor:
                return found

    async def lists(self):
        session = self.session
        return {
            "tools": [it.name for it in await self.pages(session.list_tools, "tools")],
            "prompts": [it.name for it in await self.pages(session.list_prompts, "prompts")],
            "resources": [
                str(it.uri) for it in await self.pages(session.list_resources, "resources")
            ],
            "templates": [
                it.uriTemplate
                for it in await self.pages(session.list_resource_templates, "resourceTemplates")
            ],
        }

    async def calls(self, ask):
        """Tools of every server but one."""
        file, text = f"{ask['folder']}/{self.name}.txt", f"written by {self.name}"
        return {
            "echo": await self.call("everything__echo", {"message": text}),
            "sum": await self.call("everything__get-sum", {"a": 2, "b": 40}),
            "written": await self.call("files__write_file", {"path": file, "content": text}),
            "read": await self.call("files__read_text_file", {"path": file}),
            "time": json.loads(await self.call("time__get_current_time", {"timezone": "UTC"})),
            "git": await self.call("git__git_status", {"repo_path": ask["repository"]}),
        }

    async def remember(self, _ask):
        """Notes something, and reads all notes."""
        text = f"written by {self.name}"
        entities = {
            "entities": [{"name": self.name, "entityType": "client", "observations": [text]}]
        }
        return {
            "created": json.loads(await self.call("memory__create_entities", entities)),
            "graph": json.loads(await self.call("memory__read_graph", {})),
        }

    async def texts(self):
        """A prompt, two resources, the end of a word."""
        session = self.session
        weather = {"city": "Bern", "state": "BE"}
        prompt = await session.get_prompt("everything__args-prompt", weather)
        dynamic = await session.read_resource(AnyUrl(WATCHED))
        document = "xy://everything/demo://resource/static/document/features.md"
        static = await session.read_resource(AnyUrl(document))
        named = types.PromptReference(type="ref/prompt", name="everything__completable-prompt")
        word = await session.complete(named, {"name": "department", "value": "E"})
        template = types.ResourceTemplateReference(
            type="ref/resource",
            uri="xy://everything/demo://resource/dynamic/text/{resourceId}",
        )
        number = await session.complete(template, {"name": "resourceId", "value": "7"})
        return {
            "prompt": prompt.messages[0].content.text,
            "dynamic": dynamic.contents[0].text,
            "static": static.contents[0].text,
            "word": word.completion.values,
            "number": number.completion.values,
        }

    async def long(self):
        """A call that tells how far it is, and one that is given up."""
        heard = []

        async def progress(done, total, _message):
            heard.append([done, total])

        told = await self.call(LONG, {"duration": 1, "steps": 4}, progress_callback=progress)
        try:
            limit = timedelta(milliseconds=300)
            gave_up = await self.call(LONG, {"duration": 30}, read_timeout_seconds=limit)
        except McpError as problem:
            gave_up = {"code": problem.error.code}
        return {"long": told, "progress": heard, "gave_up": gave_up}

    async def crowd(self):
        """Twenty calls at once, the odd ones to another server."""

        async def one(number):
            if number % 2:
                arguments = {"timezone": "Asia/Tokyo"}
                answer = json.loads(await self.call("time__get_current_time", arguments))
                return answer["timezone"]
            return await self.call("everything__get-sum", {"a": number, "b": 1000})

        return {"crowd": await asyncio.gather(*(one(number) for number in range(20)))}

    async def refusals(self):
        """What cannot be had."""
        seen = {"bad_arguments": await self.call("everything__get-sum", {"a": "x"})}
        try:
            seen["unknown_tool"] = await self.call("everything__no-such-tool", {})
        except McpError as problem:
            seen["unknown_tool"] = {"code": problem.error.code}
        try:
            seen["unknown_resource"] = await self.session.read_resource(AnyUrl("no://where"))
        except McpError as problem:
            seen["unknown_resource"] = {"code": problem.error.code}
        return seen

    async def tour(self, ask):
        """Everything, once."""
        session = self.session
        await session.send_ping()
        await session.set_logging_level("warning")
        seen = {"version": self.welcome.protocolVersion, "server": self.welcome.serverInfo.name}
        seen |= await self.lists()
        seen |= await self.calls(ask)
        seen |= await self.texts()
        seen |= await self.long()
        seen |= await self.crowd()
        seen |= await self.refusals()
        return seen

    async def watch(self, _ask):
        """Hears that a resource has changed."""
        toggle = "everything__toggle-subscriber-updates"
        await self.session.subscribe_resource(AnyUrl(WATCHED))
        started = await self.call(toggle, {})
        updated = await self.updated.get()
        await self.call(toggle, {})
        await self.session.unsubscribe_resource(AnyUrl(WATCHED))
        return {"started": started, "updated": updated}

    async def asked(self, _ask):
        """Answers what a server asks during a call."""
        prompt = {"prompt": "think", "maxTokens": 10}
        sampled = await self.call("everything__trigger-sampling-request", prompt)
        elicited = await self.session.call_tool("everything__trigger-elicitation-request", {})
        texts = [it.text for it in elicited.content]
        return {"sampled": sampled, "elicited": texts[0], "details": texts[1:]}

    async def slow(self, _ask):
        """A call during which something happens to its server, or the daemon. That it has
        begun is said in a line of its own."""

        async def progress(done, _total, _message):
            if done == 1:
                say({"begun": True})

        try:
            how = {"duration": 60, "steps": 240}
            return {"slow": await self.call(LONG, how, progress_callback=progress)}
        except McpError as problem:
            return {"error": problem.error.model_dump(exclude_none=True)}

    async def find(self, _ask):
        """Finds a tool instead of reading a list, reads what it takes, and calls it."""
        listed = [tool.name for tool in (await self.session.list_tools()).tools]
        query = {"query": "add two numbers", "limit": 3}
        found = await self.session.call_tool("search_tools", query)
        names = [tool["name"] for tool in found.structuredContent["tools"]]
        described = await self.session.call_tool("describe_tool", {"name": names[0]})
        takes = described.structuredContent["tool"]["inputSchema"]["properties"]
        called = {"name": names[0], "arguments": {"a": 2, "b": 40}}
        missing = {"name": "everything__get-summ", "arguments": {}}
        friends = []
        for query, name, arguments in FRIENDS:
            found = await self.session.call_tool("search_tools", {"query": query})
            described = await self.session.call_tool("describe_tool", {"name": name})
            friends.append(
                {
                    "found": [tool["name"] for tool in found.structuredContent["tools"]],
                    "described": described.structuredContent["tool"]["name"],
                    "called": await self.call("call_tool", {"name": name, "arguments": arguments}),
                }
            )
        return {
            "listed": listed,
            "friends": friends,
            "found": names,
            "takes": sorted(takes),
            "called": await self.call("call_tool", called),
            "missing": await self.call("call_tool", missing),
        }

    async def use(self, ask):
        """Lists the tools, and calls those that it is told to."""
        answers = []
        for tool, arguments in ask["calls"]:
            try:
                answers.append(await self.call(tool, arguments))
            except McpError as problem:
                answers.append(f"refused: {problem.error.code}")
        tools = await self.pages(self.session.list_tools, "tools")
        return {
            "version": self.welcome.protocolVersion,
            "tools": [tool.model_dump(mode="json", exclude_none=True) for tool in tools],
            "answers": answers,
        }

    async def changes(self, _ask):
        return {"changed": self.changed}


def say(what):
    print(json.dumps(what), flush=True)


@contextlib.asynccontextmanager
async def connected(way, where):
    """The two ends of a connection."""
    if way == "stdio":
        # Of its own accord the package hands on a few variables only.
        server = StdioServerParameters(command=where[0], args=where[1:], env=dict(os.environ))
        async with stdio_client(server) as (reader, writer):
            yield reader, writer
    else:
        url, token = where
        headers = {"Authorization": f"Bearer {token}"}
        async with streamablehttp_client(url, headers=headers) as (reader, writer, _):
            yield reader, writer


async def main(way, *where):
    client = Client()
    async with connected(way, list(where)) as (reader, writer):
        session = ClientSession(
            reader,
            writer,
            message_handler=client.hear,
            sampling_callback=client.think,
            elicitation_callback=client.fill_in,
        )
        async with session as client.session:
            client.welcome = await client.session.initialize()
            say({"ready": True})
            while line := await asyncio.to_thread(sys.stdin.readline):
                ask = json.loads(line)
                client.name = ask["name"]
                seen = await getattr(client, ask["do"])(ask)
                say(seen)


asyncio.run(main(*sys.argv[1:]))
