"""``min_segment_tokens`` and ``max_segments``, kept on the way: no decision waits for what comes later."""

from __future__ import annotations

import sys
from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


END = sys.maxsize


@dataclass(frozen=True)
class Preferred:
    """Cuts that come before others, sorted and distinct.

    One is left out where the open segment began at ``needless_after`` or later: what it marks has begun already.
    ``fixed`` ones are admitted however short the open segment is.
    """

    cuts: NDArray[np.int64]
    needless_after: NDArray[np.int64]
    fixed: bool = False

    @classmethod
    def always(cls, cuts: NDArray[np.int64]) -> Preferred:
        return cls(cuts, np.full(len(cuts), END), fixed=True)

    @classmethod
    def none(cls) -> Preferred:
        return cls.always(np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Limits:
    """What cuts have to keep.

    ``least`` is the least number of tokens that a segment has when another begins; ``most`` the greatest number of
    segments. ``reserved`` of the cuts are kept for those that come first (answers; coarse levels). ``horizon`` is the
    number of tokens over which the room for further cuts is spread.
    """

    least: int = 1
    most: int = 64
    horizon: int = 8192
    reserved: int = 1

    def admit(self, cuts: NDArray[np.int64], preferred: Preferred) -> NDArray[np.int64]:
        """The cuts that there is room for, sorted; ``cuts`` and ``preferred.cuts`` are sorted and distinct.

        A cut is admitted if the open segment has ``least`` tokens and there is room. The first half of the room is
        given to whatever comes; after that a cut must also lie where spacing says: with r cuts left after a cut at p,
        not before the place q with √q = √p + (√h − √p) / (r + 1), where h is ``horizon``, or 2p where that is more.
        Spacing grows with the position, so a short trace has nearly as many segments as a long one. The first
        ``reserved`` of the preferred cuts need not keep that spacing. Whether a cut is admitted depends on the cuts
        before it alone.
        """
        room = self.most - 1
        free = (max(0, room - self.reserved) + 1) // 2
        if self.least <= 1 and len(preferred.cuts) == 0 and len(cuts) <= free:
            return cuts
        return self._walk(cuts.tolist(), preferred)

    def _walk(self, cuts: list[int], come_first: Preferred) -> NDArray[np.int64]:
        preferred, needless_after = come_first.cuts.tolist(), come_first.needless_after.tolist()
        room = self.most - 1
        ordinary_room = max(0, room - self.reserved)
        free, root_horizon = (ordinary_room + 1) // 2, sqrt(self.horizon)
        kept: list[int] = []
        last, ordinary, special, at_cut, at_preferred = 0, 0, 0, 0, 0
        while len(kept) < room:
            earliest, left = last + self.least, ordinary_room - ordinary
            spaced = earliest
            if ordinary >= free:
                begin, end = sqrt(last), root_horizon if 2 * last <= self.horizon else sqrt(2 * last)
                spaced = max(earliest, ceil((begin + (end - begin) / (left + 1)) ** 2))
            exempt = special < self.reserved
            soonest = last + 1 if come_first.fixed else earliest if exempt else spaced
            at_preferred = bisect_left(preferred, soonest, at_preferred)
            at_cut = bisect_left(cuts, spaced, at_cut)
            special_next = preferred[at_preferred] if at_preferred < len(preferred) and (exempt or left) else END
            ordinary_next = cuts[at_cut] if at_cut < len(cuts) and left else END
            if min(special_next, ordinary_next) == END:
                break
            if special_next <= ordinary_next:
                at_preferred += 1
                if last >= needless_after[at_preferred - 1]:
                    continue
                special, ordinary = special + exempt, ordinary + (not exempt)
            else:
                ordinary += 1
            last = min(special_next, ordinary_next)
            kept.append(last)
        return np.array(kept, dtype=np.int64)
