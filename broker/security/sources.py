"""Where clients come from: which addresses count as one for the limits that are per address."""

import ipaddress


def source_of(address: str) -> str:
    """Return what addresses one client can easily have: of IPv6, the /64 network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
