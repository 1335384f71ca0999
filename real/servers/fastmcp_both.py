"""A server of both eras with FastMCP that asks its client in the middle of a call.

    fastmcp_both.py stdio

Its tools are those of `fixture.py` with the same names.
"""

from fastmcp import Context, FastMCP
from mcp_types import SamplingMessage, TextContent

server = FastMCP("fastmcp_both.py", version="1")


@server.tool
def test_simple_text() -> str:
    """Returns a text."""
    return "This is a simple text response for testing."


@server.tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    answer = await ctx.session.create_message(
        messages=[message], max_tokens=100, related_request_id=ctx.request_id
    )
    return f"LLM response: {answer.content.text}"


@server.tool
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user."""
    answer = await ctx.elicit(message, response_type=str)
    return f"User response: action={answer.action}, content={answer.data}"


server.run("stdio", show_banner=False)
