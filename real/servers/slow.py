"""A server in Python that reads nothing for a while after its start.

    slow.py ERA FILE [noisy]

FILE says for how many seconds. It uses the package `fastmcp` if that is installed, otherwise `mcp`.
ERA is `both`, `modern` (it refuses `initialize`) or `legacy`. With version 2 of `mcp` it may be
`both` or `modern`, with version 1 only `legacy`, and with `fastmcp` only `both`. A noisy one writes
a line to stdout that is no message, and another one before it reads. Its only tool says what it is
given. `slow.mjs` is the same in TypeScript.
"""

import pathlib
import sys
import time

import anyio

try:
    from fastmcp import FastMCP as Server

    options = {"show_banner": False}
except ImportError:
    options = {}
    try:
        from mcp.server.mcpserver import MCPServer as Server
    except ImportError:
        from mcp.server.fastmcp import FastMCP as Server

era, file, *noisy = sys.argv[1:]
server = Server("slow.py")


@server.tool()
def say(text: str) -> str:
    """Says it."""
    return f"said: {text}"


async def serve_modern():
    """Serves modern requests only. The package has no public function for that over stdio."""
    from mcp.server.runner import _serve_modern_stream
    from mcp.server.stdio import stdio_server

    lowlevel = server._lowlevel_server
    async with stdio_server() as (read_stream, write_stream), lowlevel.lifespan(lowlevel) as state:
        await _serve_modern_stream(
            lowlevel, read_stream, write_stream, lifespan_state=state, raise_exceptions=False
        )


def make_noise(text):
    if noisy:
        print(text, flush=True)


make_noise("Starting {")
time.sleep(float(pathlib.Path(file).read_text()))
make_noise("[ready]")
if era == "modern":
    anyio.run(serve_modern)
else:
    server.run("stdio", **options)
