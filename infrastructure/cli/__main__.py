"""`python -m onefold.infrastructure.cli` is `onefold`."""

from . import main

main()
