# SPDX-License-Identifier: Apache-2.0
"""Scripts that run in another Python, which may lack every library of ours.

`system.probe` runs them as ``PYTHON -c SOURCE``.
"""
