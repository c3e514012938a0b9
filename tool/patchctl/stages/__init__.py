# SPDX-License-Identifier: Apache-2.0
"""What each stage does: fetch, replay, build, verify, install."""
