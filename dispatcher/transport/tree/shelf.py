"""What a relay keeps for many to read: which piece lies in which place.

The root alone decides. It has a piece put into a place (KEEP), and then given to one stream
after the other (KEPT). All of that goes down one lane, so nothing is lost when a piece takes
the place of another: whoever was promised the old one has had it by then. Places are taken in
turn, and nobody notes who has yet to read what lies there: one that comes too late for a piece
has it sent once more, which is never more than if each had been sent its own.
"""

from __future__ import annotations

#: places; a relay keeps so many pieces at most, four times what a stream may be ahead of another
PLACES = 32


class Shelf:
    """Pieces are told apart by identity: to compare them would take as long as to send them."""

    def __init__(self) -> None:
        self._lying: dict[int, tuple[int, bytes]] = {}  # the oldest first

    def place(self, piece: bytes) -> tuple[int, bool]:
        """The place of ``piece``, and whether it has to be put there first."""
        found = self._lying.get(id(piece))
        if found is not None:
            return found[0], False
        place = len(self._lying)
        if place == PLACES:
            place, _ = self._lying.pop(next(iter(self._lying)))
        self._lying[id(piece)] = place, piece
        return place, True
