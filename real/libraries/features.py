"""The features that every client library in Python is tried with, and the check of each.

A driver subclasses `Library` with the few operations that these checks need, and calls
`main`. Its command line is

    DRIVER stdio COMMAND ARGS…      or      DRIVER http|sse URL TOKEN

`TOOL_PREFIX` and `URI_PREFIX` in the environment stand before the names of the server:
they are empty without xy in between. Each feature prints one line of JSON:

    {"feature": "list", "result": "ok" | "failed" | "unsupported", "why": "…"}

A driver states why its library has no API for a feature in `unsupported`. The test that
runs it has the same list, so that no feature turns into that unnoticed. `features.mjs` is
the same in TypeScript.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
from dataclasses import dataclass

# The large message comes last: a library that cannot take it may lose its connection.
FEATURES = (
    "list", "unicode", "error", "unknown", "progress", "concurrent", "elicitation", "sampling",
    "roots", "completion", "resources", "subscribe", "logging", "cancel", "prompt", "large",
)

# Nothing that works takes so long, on a busy machine either.
LIMIT_SECONDS = 40

UNICODE = 'Zoë 你好 👩‍👩‍👧 \u0000\u2028 "quoted" \\ \t é e\u0301 \U0010ffff'
LARGE = ("0123456789abcdef" * 64 + "\n") * 4096  # A little more than 4 MB.
CONCURRENT_CALLS = 50

QUESTION = "Who are you, Zoë?"
ANSWER = {"username": "Zoë 👋", "email": "zoe@example.com"}
THOUGHT = "a thought of the client: 你好"
ROOT = "file:///srv/library"
LEVEL = "warning"
LEVELS = ["warning", "error", "critical", "emergency"]
WATCHED = "test://watched-resource"
PICTURE = b"\x89PNG\r\n\x1a\n"

# Some libraries log to stdout: it becomes stderr for them, and the report goes out alone.
REPORT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


@dataclass
class Answer:
    """The first text of a tool's result."""

    text: str
    is_error: bool = False


class Mismatch(Exception):
    """A library returned something other than the server sent."""


def expect(seen, wanted, what):
    if seen != wanted:
        raise Mismatch(f"{what}: {short(seen)}, not {short(wanted)}")


def short(value):
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}… ({len(text)} characters)"


def tool(name):
    return os.environ.get("TOOL_PREFIX", "") + name


def uri(name):
    return os.environ.get("URI_PREFIX", "") + name


class Library:
    """One connection of a library. Drivers override the operations that raise here."""

    # Features that the library has no API for, each with the reason.
    unsupported = {}

    # Without a way to set the level, less serious messages are heard too.
    sets_level = True

    def __init__(self):
        self.asked = []  # Messages of elicitations and prompts of samplings.
        self.logged = []  # Pairs of level and data.
        self.changed = asyncio.Event()  # Set with every notification.
        self.updated = []  # URIs of changed resources.

    # -- operations --------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def connected(self, transport, where):
        """Connects over a transport."""
        raise NotImplementedError
        yield

    async def tools(self):
        """Returns a dict of descriptions and schemas by name."""
        raise NotImplementedError

    async def call(self, name, arguments):
        """Calls a tool and returns an `Answer`; raises for a protocol error."""
        raise NotImplementedError

    async def call_with_progress(self, name, arguments, hear):
        """Calls a tool; `hear(progress, total)` is called for each progress notification."""
        raise NotImplementedError

    async def give_up(self, task):
        """Cancels a call that waits."""
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def complete(self, prompt, argument, value):
        """Returns the values that complete an argument of a prompt."""
        raise NotImplementedError

    async def resources(self):
        """Returns the URIs of all resources."""
        raise NotImplementedError

    async def read(self, resource):
        """Returns the contents of a resource: text or bytes."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def watching(self, resource):
        """Subscribes to a resource; its updates come to `hear_update`."""
        raise NotImplementedError
        yield

    async def set_level(self, level):
        """Sets the level from which on the server logs."""
        raise NotImplementedError

    async def prompts(self):
        """Returns the names of all prompts."""
        raise NotImplementedError

    async def prompt(self, name, arguments):
        """Returns the text of a prompt's first message."""
        raise NotImplementedError

    def is_refusal(self, problem):
        """Returns true for the exception with which the library reports an unknown tool."""
        return getattr(getattr(problem, "error", None), "code", None) == -32602

    # -- what the server says ----------------------------------------------------------

    def hear_log(self, level, data):
        self.logged.append((level, data))
        self.changed.set()

    def hear_update(self, resource):
        self.updated.append(str(resource))
        self.changed.set()

    async def wait_until(self, is_so):
        while not is_so():
            self.changed.clear()
            await self.changed.wait()

    # -- features ----------------------------------------------------------------------

    async def check_list(self):
        tools = await self.tools()
        for name, description, properties in (
            ("test_simple_text", "Answers a text", []),
            ("odd_result", '😀 a "result"', ["n"]),
            ("test_sampling", "Asks the client's model", ["prompt"]),
            ("greet", "Is never a task", ["name"]),
        ):
            if tool(name) not in tools:
                raise Mismatch(f"no tool {tool(name)} in {short(list(tools))}")
            told, schema = tools[tool(name)]
            expect(told, description, f"description of {name}")
            expect(list(schema.get("properties") or {}), properties, f"arguments of {name}")

    async def check_unicode(self):
        answer = await self.call(tool("greet"), {"name": UNICODE})
        expect(answer, Answer(f"Hello, {UNICODE}!"), "answer")

    async def check_large(self):
        answer = await self.call(tool("greet"), {"name": LARGE})
        expect(answer, Answer(f"Hello, {LARGE}!"), "answer")

    async def check_error(self):
        answer = await self.call(tool("test_error_handling"), {})
        wanted = Answer("This tool intentionally returns an error for testing", True)
        expect(answer, wanted, "answer")

    async def check_unknown(self):
        try:
            answer = await self.call(tool("no_such_tool"), {})
        except Exception as problem:
            if not self.is_refusal(problem):
                raise
        else:
            raise Mismatch(f"an unknown tool answers {short(answer)}")

    async def check_progress(self):
        heard = []

        def hear(progress, total):
            heard.append((float(progress), float(total)))
            self.changed.set()

        answer = await self.call_with_progress(tool("test_tool_with_progress"), {}, hear)
        expect(answer, Answer("Tool with progress executed successfully"), "answer")
        await self.wait_until(lambda: len(heard) >= 3)
        expect(heard, [(0.0, 100.0), (50.0, 100.0), (100.0, 100.0)], "progress")

    async def check_concurrent(self):
        names = [f"caller {n}" for n in range(CONCURRENT_CALLS)]
        calls = [self.call(tool("greet"), {"name": name}) for name in names]
        answers = await asyncio.gather(*calls)
        expect(answers, [Answer(f"Hello, {name}!") for name in names], "answers")

    async def check_elicitation(self):
        self.asked.clear()
        answer = await self.call(tool("test_elicitation"), {"message": QUESTION})
        expect(self.asked, [QUESTION], "question")
        head, _, content = answer.text.partition("content=")
        expect(head, "User response: action=accept, ", "answer")
        expect(json.loads(content), ANSWER, "content")

    async def check_sampling(self):
        self.asked.clear()
        answer = await self.call(tool("test_sampling"), {"prompt": QUESTION})
        expect(self.asked, [QUESTION], "prompt")
        expect(answer, Answer(f"LLM response: {THOUGHT}"), "answer")

    async def check_roots(self):
        answer = await self.call(tool("ask_roots"), {})
        roots = [root["uri"] for root in json.loads(answer.text)["roots"]]
        expect(roots, [ROOT], "roots")

    async def check_completion(self):
        values = await self.complete(tool("test_prompt_with_arguments"), "arg1", "par")
        expect(values, ["paris", "park", "party"], "values")

    async def check_resources(self):
        found = await self.resources()
        for name in ("test://static-text", "test://static-binary", WATCHED):
            if uri(name) not in found:
                raise Mismatch(f"no resource {uri(name)} in {short(found)}")
        text = await self.read(uri("test://static-text"))
        expect(text, "This is the content of the static text resource.", "text")
        picture = await self.read(uri("test://static-binary"))
        expect(picture[: len(PICTURE)], PICTURE, "bytes")
        data = json.loads(await self.read(uri("test://template/é1/data")))
        expect(data["templateTest"], True, "contents of a template")

    async def check_subscribe(self):
        async with self.watching(uri(WATCHED)):
            answer = await self.call(tool("touch"), {"uri": WATCHED})
            expect(answer, Answer("touched"), "answer while subscribed")
            await self.wait_until(lambda: self.updated)
        expect(self.updated, [uri(WATCHED)], "updated resources")

    async def check_logging(self):
        if self.sets_level:
            await self.set_level(LEVEL)
        self.logged.clear()
        expect(await self.call(tool("every_level"), {}), Answer("said"), "answer")
        await self.wait_until(lambda: any(level == LEVELS[-1] for level, _ in self.logged))
        said = {"n": 1.0, "at": "every level"}
        logged = [it for it in self.logged if self.sets_level or it[0] in LEVELS]
        expect(logged, [(level, said) for level in LEVELS], "log")

    async def check_cancel(self):
        begun = asyncio.Event()
        waiting = self.call_with_progress(
            tool("wait_for_cancel"), {}, lambda *_: begun.set()
        )
        task = asyncio.create_task(waiting)
        try:
            await begun.wait()
            await self.give_up(task)
        finally:
            task.cancel()  # A call that is left open would hold up the next feature.
        seen = await self.call(tool("last_cancelled"), {})
        expect(seen.is_error, False, "failure")
        expect(sorted(json.loads(seen.text)), ["reason", "x-more"], "cancellation")

    async def check_prompt(self):
        name = tool("test_prompt_with_arguments")
        found = await self.prompts()
        if name not in found:
            raise Mismatch(f"no prompt {name} in {short(found)}")
        text = await self.prompt(name, {"arg1": "Zoë", "arg2": "你好"})
        expect(text, "Prompt with arguments: arg1='Zoë', arg2='你好'", "prompt")


def decoded(contents):
    """Returns the text or the bytes of a resource as the SDK's types have them."""
    [content] = contents
    return content.text if hasattr(content, "text") else base64.b64decode(content.blob)


def say(feature, result, why=""):
    print(json.dumps({"feature": feature, "result": result, "why": why}), file=REPORT, flush=True)


def innermost(problem):
    """Returns the cause that says the most: groups of exceptions say nothing themselves."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


async def run(library, transport, where):
    async with library.connected(transport, where):
        for feature in FEATURES:
            if feature in library.unsupported:
                say(feature, "unsupported", library.unsupported[feature])
                continue
            try:
                async with asyncio.timeout(LIMIT_SECONDS):
                    await getattr(library, f"check_{feature}")()
            except TimeoutError:
                say(feature, "failed", f"not done within {LIMIT_SECONDS} s")
            except Exception as problem:
                cause = innermost(problem)
                say(feature, "failed", f"{type(cause).__name__}: {cause}"[:600])
            else:
                say(feature, "ok")


def main(library):
    transport, *where = sys.argv[1:]
    asyncio.run(run(library, transport, where))
