"""LangChain's MCP adapters, on `mcp` 1.x. `features.py` has the checks.

Tools and resources are used as LangChain has them. The rest goes through the session of the
SDK that `MultiServerMCPClient.session` hands out.
"""

import contextlib
import os

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.prompts import load_mcp_prompt
from langchain_mcp_adapters.resources import get_mcp_resource
from langchain_mcp_adapters.tools import load_mcp_tools

import features
from features import Answer
from mcp1 import Mcp1, answer


class LangChain(Mcp1):
    @contextlib.asynccontextmanager
    async def connected(self, transport, where):
        self.hear_progress = lambda *_: None
        callbacks = Callbacks(
            on_logging_message=self.log_in_context,
            on_progress=self.progress,
            on_elicitation=self.fill_in_context,
        )
        more = {
            "sampling_callback": self.think,
            "list_roots_callback": self.show_roots,
            "message_handler": self.hear,
        }
        connection = {**place(transport, where), "session_kwargs": more}
        client = MultiServerMCPClient({"server": connection}, callbacks=callbacks)
        async with client.session("server") as self.session:
            loaded = await load_mcp_tools(self.session, callbacks=callbacks)
            self.loaded = {tool.name: tool for tool in loaded}
            yield

    async def log_in_context(self, params, _context):
        await self.log(params)

    async def progress(self, done, total, _message, _context):
        self.hear_progress(done, total)

    async def fill_in_context(self, mcp_context, params, _context):
        return await self.fill_in(mcp_context, params)

    async def tools(self):
        return {name: (it.description, it.args_schema) for name, it in self.loaded.items()}

    async def call(self, name, arguments):
        if name not in self.loaded:
            return answer(await self.session.call_tool(name, arguments))
        asked = {"type": "tool_call", "id": "1", "name": name, "args": arguments}
        message = await self.loaded[name].ainvoke(asked)
        return Answer(message.content[0]["text"], message.status == "error")

    async def call_with_progress(self, name, arguments, hear):
        self.hear_progress = hear
        return await self.call(name, arguments)

    async def read(self, resource):
        [blob] = await get_mcp_resource(self.session, resource)
        return blob.data

    async def prompt(self, name, arguments):
        messages = await load_mcp_prompt(self.session, name, arguments=arguments)
        return messages[0].content


def place(transport, where):
    """Returns how LangChain is told to connect."""
    if transport == "stdio":
        command, *args = where
        return {
            "transport": "stdio", "command": command, "args": args, "env": dict(os.environ),
        }
    url, token = where
    return {
        "transport": "sse" if transport == "sse" else "streamable_http",
        "url": url,
        "headers": {"Authorization": f"Bearer {token}"},
        "timeout": features.LIMIT_SECONDS,
    }


if __name__ == "__main__":
    features.main(LangChain())
