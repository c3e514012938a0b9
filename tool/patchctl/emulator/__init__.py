# SPDX-License-Identifier: Apache-2.0
"""Executes sm_70 machine code and its PTX on a CPU, one CTA at a time (docs/emulator.md)."""
