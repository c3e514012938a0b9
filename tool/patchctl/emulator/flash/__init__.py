# SPDX-License-Identifier: Apache-2.0
"""FlashAttention's kernels for the emulator: their parameters, problems and true answers."""
