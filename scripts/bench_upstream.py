"""A stand-in for llama-server that streams as fast as it can: what is left is the relay's own cost.

Started by the app in place of a llama-server (``llama_server`` in the settings), it listens where that would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

CHUNK = json.dumps(
    {
        "choices": [{"finish_reason": None, "index": 0, "delta": {"content": " word"}}],
        "created": 1796002877,
        "id": "chatcmpl-bFbR5jMYPSgWEAj7Spk3ejOX8bA7jkBk",
        "model": "fast",
        "object": "chat.completion.chunk",
    }
)
EVENT = b"data: " + CHUNK.encode() + b"\n\n"
PROPERTIES = json.dumps({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4}).encode()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request and close."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")), 0)
    body = await reader.readexactly(length)
    if head.startswith(b"GET /props"):
        _whole(writer, PROPERTIES)
    elif head.startswith(b"GET") or not json.loads(body).get("stream"):
        _whole(writer, b"{}")
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(json.loads(body)["max_tokens"]):
            writer.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
            await writer.drain()
        done = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done))
    await writer.drain()
    writer.close()


def _whole(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def main() -> None:
    """Serve until stdin ends, as a llama-server with a lifeline does."""
    server = await asyncio.start_server(serve, "127.0.0.1", int(os.environ["LLAMA_ARG_PORT"]))
    async with server:
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if "--version" in sys.argv:
        print("version: bench")
    else:
        asyncio.run(main())
