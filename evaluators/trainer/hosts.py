"""Where other nodes can reach this one."""

import fcntl
import socket
import struct
from contextlib import suppress

SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address (netdevice(7))."""


def own_hosts(interface: str | None) -> list[str]:
    """Return where this host may be reached: at the named interface, else by its name and its own
    addresses.
    """
    if (
        interface is not None
    ):  # an OSError where there is no such interface, or it has no IPv4 address
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            return [socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])]
    name, found = socket.gethostname(), list[str]()
    with suppress(OSError):
        found = [
            str(entry[4][0])
            for entry in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        ]
    # The name first: where hosts have several networks it is the one that the site means. The
    # loopback last, for ranks of a host whose name nothing resolves.
    addresses = [address for address in found if not address.startswith("127.")]
    return list(dict.fromkeys([name, *addresses, "127.0.0.1"]))
