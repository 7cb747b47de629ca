# Acquires and releases places of labgrid's coordinator at the address $1, with 1, 50 and 1,000 places.
import asyncio
import random
import sys
import time

from labgrid.remote.client import ClientSession
from labgrid.remote.generated import labgrid_coordinator_pb2 as pb

PAIRS = 300


async def main():
    session = ClientSession(sys.argv[1], asyncio.get_running_loop())
    await session.start()
    random.seed(1)
    have = 0
    for places in (1, 50, 1000):
        while have < places:
            await session.stub.AddPlace(pb.AddPlaceRequest(name=f"p{have}"))
            have += 1
        await session.sync_with_coordinator()
        began = time.monotonic()
        for _ in range(PAIRS):
            name = f"p{random.randrange(places)}"
            await session.stub.AcquirePlace(pb.AcquirePlaceRequest(placename=name))
            await session.stub.ReleasePlace(pb.ReleasePlaceRequest(placename=name))
        print(places, PAIRS / (time.monotonic() - began), flush=True)
    session.stopping.set()
    await session.stop()
    await session.close()


asyncio.run(main())
