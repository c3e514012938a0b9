# SPDX-License-Identifier: Apache-2.0
"""`python -m patchctl`."""

from patchctl.cli.main import run

if __name__ == "__main__":
    run()
