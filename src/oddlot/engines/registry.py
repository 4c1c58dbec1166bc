"""The engines with worker processes, by kind."""

from oddlot.engines.local.config import Local
from oddlot.engines.ray.config import Ray

ENGINES: dict[str, type[Local] | type[Ray]] = {each.kind: each for each in (Local, Ray)}
