import ipaddress
from urllib.parse import urlsplit


def is_safe(url: str) -> bool:
    """Whether nobody on the way can change what comes from `url`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
