"""Every locker, and what they have in common: who holds which lock, and until when.

The rules of a lease are in ``lease``, what a holder says of itself in ``holder_id``, the interfaces
in ``abc``. Whoever asks who holds a lock, and is no node of the pair, asks by ``status``; whoever
works on a store while no node may asks for the live lock by ``maintenance``.
"""
