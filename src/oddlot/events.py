"""Events that a strategy receives (`Event`), and further events in the log of a run."""

from oddlot.core.events import *
from oddlot.core.peers import Drift as Drift, LayerDrift as LayerDrift, PeerModel as PeerModel
from oddlot.core.records import Record as Record
from oddlot.core.tasks import Facts as Facts, NodeId as NodeId, Task as Task, TaskId as TaskId
