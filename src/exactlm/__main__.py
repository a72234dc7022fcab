"""python -m exactlm."""

import sys

from exactlm.cli import main

sys.exit(main())
