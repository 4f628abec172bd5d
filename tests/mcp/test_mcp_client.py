"""`baton mcp` with the protocol's official Python client, on a running cluster."""

import asyncio
import json
import os
import subprocess

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

BIN = os.environ["BATON_BIN"]
TOOLS = ["status", "topology", "metrics", "trace", "why", "doctor", "plan", "bench"]


def with_session(server, use):
    """Runs `use(session)` in a session of the client with `baton mcp` on `server`."""

    async def talk():
        args = ["mcp", "--admin", server.admin, "--url", server.url]
        async with stdio_client(StdioServerParameters(command=BIN, args=args)) as streams:
            async with ClientSession(*streams) as session:
                hello = await session.initialize()
                return hello, await use(session)

    return asyncio.run(talk())


async def text_of(session, name, arguments=None):
    result = await session.call_tool(name, arguments or {})
    fields = result.model_dump(by_alias=True)
    assert not fields["isError"], (name, fields)
    return fields["content"][0]["text"]


def test_the_client_lists_the_tools_and_their_schemas(server):
    async def use(session):
        return (await session.list_tools()).model_dump(by_alias=True)["tools"]

    hello, tools = with_session(server, use)
    assert hello.model_dump(by_alias=True)["protocolVersion"] >= "2025-06-18"
    assert [tool["name"] for tool in tools] == TOOLS
    for tool in tools:
        assert tool["inputSchema"]["type"] == "object"
        assert tool["inputSchema"]["additionalProperties"] is False


def test_each_tool_answers_about_the_cluster(server):
    server.complete("One, two,")

    async def use(session):
        assert "decode-0" in await text_of(session, "status")
        workers = json.loads(await text_of(session, "topology"))
        assert "decode-0" in json.dumps(workers)
        samples = await text_of(session, "metrics", {"name": "baton_requests_total"})
        assert all(line.startswith("baton_requests_total") for line in samples.splitlines())
        steps = await text_of(session, "metrics", {"name": "baton_kv_blocks", "worker": "decode-0"})
        assert "decode-0" in steps
        rows = json.loads(await text_of(session, "trace", {"last": 1}))
        assert len(rows) == 1 and rows[0]["status"] == 200
        why = json.loads(await text_of(session, "why", {"request": rows[0]["request_uid"]}))
        assert why["request_uid"] == rows[0]["request_uid"]
        assert json.loads(await text_of(session, "doctor"))
        plan = {"model": "smollm2:135m", "device": "NVIDIA H200", "input": 512, "output": 64,
                "rate": "4", "ttft": "500ms", "itl": "50ms"}  # fmt: skip
        assert json.loads(await text_of(session, "plan", plan))
        load = {"requests": 2, "users": 1, "input": 16, "output": 4}
        assert "TTFT" in (await text_of(session, "bench", load)).upper()

    with_session(server, use)


@pytest.mark.parametrize("name, arguments, text", [
    ("why", {"request": "none-of-this-name"}, "none of that name"),
    ("metrics", {"name": "baton_", "worker": "decode-9"}, "decode-0"),
    ("bench", {"requests": 100000}, "from 1 to 200"),
    ("plan", {"model": "smollm2:135m"}, "'device' is missing"),
])  # fmt: skip
def test_what_cannot_be_done_is_an_error_that_says_why(server, name, arguments, text):
    async def use(session):
        return (await session.call_tool(name, arguments)).model_dump(by_alias=True)

    _, result = with_session(server, use)
    assert result["isError"] and text in result["content"][0]["text"], result


def test_the_program_ends_with_its_input():
    hello = '{"jsonrpc":"2.0","id":1,"method":"ping"}'
    done = subprocess.run([BIN, "mcp"], input=f"no json\n{hello}", capture_output=True, text=True,
                          check=False, timeout=30)  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    codes = [json.loads(line).get("error", {}).get("code") for line in done.stdout.splitlines()]
    assert codes == [-32700, None]
