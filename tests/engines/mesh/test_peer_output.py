"""The launcher shows the output of peers."""

from pathlib import Path

from oddlot.engines.mesh.launcher import PeerOutput


def test_equal_lines_of_several_peers_are_shown_once(tmp_path: Path) -> None:
    first, second = tmp_path / "w1.log", tmp_path / "w2.log"
    shown: list[str] = []
    output = PeerOutput(shown.append)
    first.write_text("a warning\n  the line\nof w")
    second.write_text("a warning\n  the line\nof w2\n")
    output.paths += [first, second, tmp_path / "removed"]
    output.read()
    assert shown == ["a warning", "  the line", "of w2"]
    with first.open("a") as file:
        file.write("1\na warning\n")
    output.read()
    assert shown == ["a warning", "  the line", "of w2", "of w1"]
