# SPDX-License-Identifier: Apache-2.0
"""Pure readers and writers of the project's file formats: no processes, no files, no clock."""
