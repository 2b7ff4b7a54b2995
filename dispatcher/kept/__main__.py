"""``python -m dispatcher.kept``: the holder; started by ``place.call`` alone."""

from dispatcher.kept.holder import main

main()
