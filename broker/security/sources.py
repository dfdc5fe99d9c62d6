"""The source of a client: the addresses that count as one for limits per address."""

import ipaddress


def source_of(address: str) -> str:
    """Return the network of addresses that one client can easily have: for IPv6, its /64."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
