"""Where the nodes of a pair serve their API, as they publish it beside their locks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orthia.broker.cli.opening import check_stored, opened_locks
from orthia.broker.cli.rendering import in_words
from orthia.broker.cli.settings_options import StoreOptions
from orthia.broker.client.management import ManagementAddress
from orthia.config.exposure import is_loopback
from orthia.config.lockers import lock_database, lock_directory
from orthia.config.parts import Part
from orthia.config.store_settings import FileStoreSettings

if TYPE_CHECKING:
    # Loaded where a store is looked at: --help looks at none.
    from orthia.nodemanager.locks.lease import Lock, LockStatus
    from orthia.nodemanager.locks.reports import Published

_ASKED_AS: Final = "orthia-cli"


@dataclass(frozen=True)
class Found:
    """What a store says of its nodes."""

    addresses: tuple[ManagementAddress, ...] = ()
    """Of the holders of the locks, the live one's first."""
    notes: tuple[str, ...] = ()
    """Why there is none of the live node, and what is published that does not count."""
    has_live: bool = False
    """Whether the address of the holder of the live lock is among them."""


def find(store: StoreOptions) -> Found:
    """Return where the nodes of ``store`` serve their API.

    Raises ConfigurationError, StoreError, Unavailable if the store cannot be asked.
    """
    loaded = store.load(Part.STORE)
    if loaded is not None and store.url is None:
        check_stored(loaded)
    chosen = store.resolve() if loaded is None else store.apply_to(loaded)
    if lock_database(chosen) is None and isinstance(chosen, FileStoreSettings):
        from orthia.nodemanager.locks.server_lock import STATE_FILE

        if not (lock_directory(chosen) / STATE_FILE).exists():
            return Found(notes=("no node has been started on this store",))
    with opened_locks(chosen, _ASKED_AS) as locks:
        status, published = locks.look().status, locks.published()
    addresses, notes, has_live = [], [], False
    for lock in (status.live, status.backup):
        address, told = _address_of(lock, published)
        notes += told
        if address is not None:
            addresses.append(address)
            has_live = has_live or lock is status.live
    return Found(tuple(dict.fromkeys(addresses)), tuple(notes), has_live)


def _address_of(
    lock: "LockStatus", published: "Mapping[Lock, Published]"
) -> tuple[ManagementAddress | None, list[str]]:
    """Return where the holder of a lock serves its API; what is wrong with it where it does not.

    Who has just taken the live lock has published it beside the backup lock.
    """
    theirs = [one.report for one in published.values() if one.holder_id == lock.holder_id]
    url = next((one.api_url for one in theirs if one.api_url is not None), None)
    if url is None or not lock.is_held:
        return None, [*_why_not(lock, published.get(lock.lock))]
    try:
        address = ManagementAddress.parse(url)
    except ValueError:
        return None, [f"{lock.holder_id} publishes {url!r}, which is no address of an API"]
    holder = lock.holder_id
    if is_loopback(address.host) and holder is not None and not holder.is_here:
        return None, [
            f"{holder} serves its API on {url} of its own host alone: ask there, or have it listen"
            " on a <host> that others reach, in <health>"
        ]
    return address, []


def _why_not(lock: "LockStatus", published: "Published | None") -> Iterator[str]:
    name = lock.lock.name.lower()
    url = None if published is None else published.report.api_url
    if lock.holder_id is not None and lock.is_held:
        yield (
            f"{lock.holder_id} holds the {name} lock and publishes no API: it has no <health>, has"
            " just taken the lock, or is of an older version"
        )
        return
    if name != "live":
        return
    ended = ""
    if lock.holder_id is not None and lock.expires_in_seconds is not None:
        ended = f": the lease of {lock.holder_id} {in_words(lock.expires_in_seconds)}"
    yield f"nobody holds the live lock{ended}"
    if published is not None and url is not None:
        yield f"{url} is stale: {published.holder_id} published it, and is not live any more"
