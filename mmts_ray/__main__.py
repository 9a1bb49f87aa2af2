"""`python -m mmts_ray` is `mmts-ray`."""

import sys

from mmts_ray.cli import main

sys.exit(main())
