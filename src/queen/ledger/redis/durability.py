"""How a Redis must be set so that it keeps what it acknowledged."""

from __future__ import annotations

from typing import Any

DURABLE = {
    "appendonly": ("yes", "nothing would survive a restart"),
    "appendfsync": ("always", "a crash would lose queries that were answered"),
    "maxmemory-policy": ("noeviction", "clients would be forgotten when memory is short"),
}


def hides_settings(client: Any, forbidden: type[Exception]) -> bool:
    """Whether a server forbids to read its settings, as managed services do; `forbidden` is as below."""
    try:
        client.config_get(next(iter(DURABLE)))
    except forbidden:
        return True
    return False


def volatile_settings(client: Any, forbidden: type[Exception]) -> str:
    """What is wrong with a server's settings, and how to set them right; "" if nothing is.

    `forbidden` is what redis-py raises where settings may not be read.
    """
    try:
        settings = {name: client.config_get(name).get(name) for name in DURABLE}
    except forbidden as error:
        names = ", ".join(f"{name} {wanted}" for name, (wanted, _) in DURABLE.items())
        return f"its settings cannot be read ({error}); if you are sure of {names}, say allow_volatile"
    return "; ".join(
        f"{name} is '{settings[name]}', so {why}: CONFIG SET {name} {wanted} (or '{name} {wanted}' in redis.conf)"
        for name, (wanted, why) in DURABLE.items()
        if settings[name] != wanted
    )
