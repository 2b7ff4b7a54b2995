#!/usr/bin/env python3
"""A long way to every host: holds each byte back, and tells an ssh_config for it.

    scripts/testbed/delay.py --seconds 0.05 n1 n2 ... > config     # until its standard input ends

For kernels without netem. Each host gets an address of 127.77.0.0/16; what is sent there reaches
the host half of the time later, and so do the answers, so a round trip takes all of
it. Connections among the hosts stay as fast as they are.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

CHUNK = 256 << 10
PORT = 7722


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Pass bytes on, each ``delay`` seconds after it came, as many as there are on the way."""
    loop = asyncio.get_running_loop()
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await on_the_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                writer.close()
                return
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                return  # nobody is there any more

    delivery = asyncio.create_task(deliver())
    try:
        while data := await reader.read(CHUNK):
            on_the_way.put_nowait((loop.time() + delay, data))
    except OSError:
        pass  # reset: as good as an end
    on_the_way.put_nowait((loop.time() + delay, b""))
    await delivery


async def serve(hosts: list[str], seconds: float) -> None:
    delay = seconds / 2

    async def one(host: str, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay)  # the first packet of the handshake
        far, forth = await asyncio.open_connection(host, 22)
        await asyncio.gather(carry(near, forth, delay), carry(far, back, delay))

    for number, host in enumerate(hosts):
        address = f"127.77.{number // 250}.{number % 250 + 1}"

        def arrived(
            near: asyncio.StreamReader, back: asyncio.StreamWriter, host: str = host
        ) -> asyncio.Task[None]:
            return asyncio.create_task(one(host, near, back))

        await asyncio.start_server(arrived, address, PORT, backlog=256)
        print(f"Host {host}\n  HostName {address}\n  Port {PORT}\n  HostKeyAlias {host}")
    print("# ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hosts", nargs="+", metavar="HOST")
    parser.add_argument("--seconds", type=float, default=0.05, help="of a round trip")
    options = parser.parse_args()
    asyncio.run(serve(options.hosts, options.seconds))


if __name__ == "__main__":
    main()
