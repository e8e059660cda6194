"""A workaround for a bug of uvloop, for all HTTP sessions."""

import aiohttp


async def check_socket(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Convert uvloop's error about a reused file descriptor to a connection error, as middleware of aiohttp.

    After a cancelled connection attempt, uvloop may remember its file descriptor, and refuse a new socket with the same number
    (https://github.com/MagicStack/uvloop/issues/653). The next attempt succeeds.

    Raises:
        aiohttp.ClientConnectionError: uvloop refused the socket.
    """
    try:
        return await send(request)
    except RuntimeError as error:
        if "is used by transport" not in str(error):
            raise
        raise aiohttp.ClientConnectionError(str(error)) from error
