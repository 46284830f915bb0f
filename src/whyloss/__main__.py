"""python -m whyloss"""

from whyloss.cli import main

main()
