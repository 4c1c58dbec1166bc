"""Charts of a run on a mesh: exchanges between peers, and the distance of their models."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from re import split

from oddlot.core.events import Averaged, Joined, ModelReceived
from oddlot.core.records import Record
from oddlot.core.support.text import in_bytes
from oddlot.core.tasks import NodeId
from oddlot.report.svg_charts import Line, lines

BINS = 60
"""Number of intervals of the chart of exchanges over time."""
MAX_LINES = 8
"""Largest number of peers with one line each."""
MAX_PEERS = 32
"""Largest number of peers in the matrix."""


def mesh_charts(records: Sequence[Record], seconds: float) -> Iterator[str]:
    """Yield the charts. Yield nothing for a run with a hub."""
    joined = {r.event.node for r in records if r.peer and isinstance(r.event, Joined)}
    peers = sorted(
        joined, key=lambda peer: [int(one) if one.isdigit() else one for one in split(r"(\d+)", peer)]
    )
    if not peers:
        return
    yield _matrix(records, peers)
    yield _rate(records, seconds, peers)
    yield _disagreement(records, seconds)


def _matrix(records: Sequence[Record], peers: Sequence[NodeId]) -> str:
    """Return a table of the models that each peer has received from each other peer."""
    counts, sizes = Counter[tuple[NodeId, NodeId]](), Counter[tuple[NodeId, NodeId]]()
    for record in records:
        if isinstance(record.event, ModelReceived) and record.peer:
            pair = record.peer, record.event.model.sender
            counts[pair] += 1
            sizes[pair] += record.event.bytes
    shown = peers[:MAX_PEERS]
    most = max(counts.values(), default=1)
    head = "".join(f"<th>{escape(peer)}</th>" for peer in shown)
    rows = []
    for receiver in shown:
        cells = []
        for sender in shown:
            count = counts[receiver, sender]
            message = f"{receiver} from {sender}: {count:,} models, {in_bytes(sizes[receiver, sender])}"
            shade = f"background: rgba(37, 99, 235, {0.6 * count / most:.2f})"
            cells.append(f'<td class="number" style="{shade}" title="{escape(message)}">{count or ""}</td>')
        rows.append(f"<tr><th>{escape(receiver)}</th>{''.join(cells)}</tr>")
    more = f"<p>{len(peers) - MAX_PEERS} more peers are not shown.</p>" if len(peers) > MAX_PEERS else ""
    return (
        '<figure data-plot="exchange-matrix"><figcaption>Models received, by receiver (row) and sender (column)'
        f"</figcaption><div class='matrix'><table><tr><th></th>{head}</tr>{''.join(rows)}</table></div>{more}</figure>"
    )


def _rate(records: Sequence[Record], seconds: float, peers: Sequence[NodeId]) -> str:
    """Return a chart of the models received per second over time: by peer, or the mean of many peers."""
    width = seconds / BINS if seconds else 1.0
    bins = Counter(
        (record.peer, min(BINS - 1, int(record.now / width)))
        for record in records
        if isinstance(record.event, ModelReceived)
    )
    groups = [[peer] for peer in peers] if len(peers) <= MAX_LINES else [list(peers)]
    drawn = []
    for color, group in enumerate(groups if bins else ()):
        heights = (sum(bins[peer, place] for peer in group) / width / len(group) for place in range(BINS))
        points = [((place + 0.5) * width, height) for place, height in enumerate(heights)]
        drawn.append(Line(group[0] if len(group) == 1 else "a peer on average", points, color))
    return lines(
        "Models received per second by each peer",
        "seconds",
        "per second",
        drawn,
        seconds,
        values=[0.0],
        key="exchange-rate",
    )


def _disagreement(records: Sequence[Record], seconds: float) -> str:
    """Return a chart of the distance between the models at each average."""
    points = [(r.now, r.event.disagreement) for r in records if isinstance(r.event, Averaged)]
    title = "Disagreement: distance of the models from their average, relative to its norm"
    line = Line("disagreement", points, 0)
    return lines(title, "seconds", "disagreement", [line], seconds, values=[0.0], key="disagreement")
