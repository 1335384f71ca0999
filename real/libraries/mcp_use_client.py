"""The client of mcp-use, on `mcp` 1.x. `features.py` has the checks."""

import contextlib
import os

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from mcp import types  # noqa: E402
from mcp_use import MCPClient  # noqa: E402
from pydantic import AnyUrl  # noqa: E402

import features  # noqa: E402
from mcp1 import Mcp1, answer  # noqa: E402


class McpUse(Mcp1):
    unsupported = {
        "progress": "`MCPSession.call_tool` takes no callback for progress",
        "completion": "`MCPSession` has no method for completion",
        "subscribe": "`MCPSession` has no method to subscribe to a resource",
        "cancel": "`MCPSession` has no method to cancel a call",
    }

    sets_level = False

    @contextlib.asynccontextmanager
    async def connected(self, transport, where):
        client = MCPClient(
            {"mcpServers": {"server": place(transport, where)}},
            sampling_callback=self.think,
            elicitation_callback=self.fill_in,
            logging_callback=self.log,
            roots=[types.Root(uri=features.ROOT)],
        )
        self.session = await client.create_session("server")
        yield
        await client.close_all_sessions()

    async def tools(self):
        tools = await self.session.list_tools()
        return {tool.name: (tool.description, tool.inputSchema) for tool in tools}

    async def call(self, name, arguments):
        return answer(await self.session.call_tool(name, arguments))

    async def resources(self):
        return [str(it.uri) for it in await self.session.list_resources()]

    async def read(self, resource):
        return features.decoded((await self.session.read_resource(AnyUrl(resource))).contents)

    async def prompts(self):
        return [it.name for it in await self.session.list_prompts()]


def place(transport, where):
    """Returns how mcp-use is told to connect: over HTTP it tries the older one by itself."""
    if transport == "stdio":
        command, *args = where
        return {"command": command, "args": args, "env": dict(os.environ)}
    url, token = where
    return {"url": url, "auth": token}


if __name__ == "__main__":
    features.main(McpUse())
