"""A server in Python, with the `mcp` package, that reads nothing for a while after its start.

    slow.py FILE

FILE says for how many seconds. It speaks both eras with version 2 of the package and the older one with version 1. Its only
tool says what it is given. `slow.mjs` is the same in TypeScript.
"""

import pathlib
import sys
import time

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("slow.py")


@server.tool()
def say(text: str) -> str:
    """Says what it is given."""
    return f"said: {text}"


time.sleep(float(pathlib.Path(sys.argv[1]).read_text()))
server.run("stdio")
