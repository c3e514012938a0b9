# SPDX-License-Identifier: Apache-2.0
"""Executes PTX."""
