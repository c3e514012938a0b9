# SPDX-License-Identifier: Apache-2.0
"""The edges: processes, files, git, locks and progress."""
