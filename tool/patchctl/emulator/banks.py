# SPDX-License-Identifier: Apache-2.0
"""Bank conflicts of a whole CTA's access, remembered by address pattern."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchctl.formats.sharedbanks import WARP, least_wavefronts, warp_wavefronts

_seen: dict[tuple[int, bool, bytes, bytes], int] = {}
_MOST_PATTERNS = 1 << 14


def wavefronts(
    addresses: NDArray[np.int64], active: NDArray[np.bool_], size: int, is_load: bool
) -> int:
    """Wavefronts beyond one conflict-free access per warp with an active thread."""
    relative = addresses - (addresses.min() & ~np.int64(127))
    key = (size, is_load, relative.tobytes(), active.tobytes())
    extra = _seen.get(key)
    if extra is None:
        if len(_seen) >= _MOST_PATTERNS:
            _seen.clear()
        extra = 0
        least = least_wavefronts(size)
        for first in range(0, len(addresses), WARP):
            lanes = active[first : first + WARP].tolist()
            where = relative[first : first + WARP].tolist()
            extra += max(0, warp_wavefronts(where, lanes, size, is_load) - least)
        _seen[key] = extra
    return extra
