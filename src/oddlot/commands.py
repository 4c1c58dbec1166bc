"""Commands of a strategy (`Command`), and the actions that carry them out."""

from oddlot.core.commands import *
