"""``python -m dispatcher.transport.pool``: the holder; started by ``place.call`` alone."""

from dispatcher.transport.pool.daemon import main

main()
