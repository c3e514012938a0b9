# SPDX-License-Identifier: Apache-2.0
"""patchctl: a locked FlashAttention-2 baseline and a patch series, to a verified library."""

__version__ = "0.1.0"
