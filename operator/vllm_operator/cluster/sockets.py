"""A workaround for a bug of uvloop, for all HTTP sessions."""

import aiohttp


async def check_socket(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """A middleware of aiohttp that reports as a connection error what uvloop raises for a socket that it takes for another one.

    When an attempt to connect was cancelled, uvloop may remember its file descriptor, and refuses a new socket with the same number
    (https://github.com/MagicStack/uvloop/issues/653). The next attempt succeeds.

    Raises:
        aiohttp.ClientConnectionError: uvloop has refused the socket.
    """
    try:
        return await send(request)
    except RuntimeError as error:
        if "is used by transport" not in str(error):
            raise
        raise aiohttp.ClientConnectionError(str(error)) from error
